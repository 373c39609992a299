"""How clients train: tasks, local SGD, and the executors that run it for all clients of a round."""
