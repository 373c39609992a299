"""How clients train: tasks, local SGD, models, and the executors that train all clients of a round."""
