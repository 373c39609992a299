"""A node inside this process: it has a key and speaks the Fleet API itself, as the program of an attacker would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from federations import reply
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

POLL_INTERVAL = 3.0  # seconds between two questions for a message, as a SuperNode; each costs the SuperLink CPU time
N_RETRIES = 20
HEARTBEAT = 1800.0  # seconds; longer than any test
Answer = Callable[[Message], RecordDict | None]  # what a node replies to a message; None: nothing


class FleetNode:
    """Answers every message that the SuperLink has for the holder of a key, until the block ends."""

    def __init__(
        self, address: str, ca: Path, key: EllipticCurvePrivateKey, answer: Answer, delay: float = 0.0
    ) -> None:
        self.answer, self.delay = answer, delay
        self.public_key = public_key_to_bytes(key.public_key())
        self.client = FleetHttpClient.from_server_address(
            address, False, ca.read_bytes(), [NodeAuthHttpInterceptor(key, key.public_key())]
        )
        self.node = Node()
        self.errors: list[Exception] = []
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._work)

    def __enter__(self) -> FleetNode:
        try:
            self.node.node_id = self.activate()
        except BaseException:
            self.client.close()
            raise
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        self.client.close()

    def activate(self) -> int:
        request = ActivateNodeRequest(public_key=self.public_key, heartbeat_interval=HEARTBEAT)
        return int(self.client.ActivateNode(request).node_id)

    def _work(self) -> None:
        while not self._stop.wait(POLL_INTERVAL):
            try:
                pulled = self._call(self.client.PullMessages, PullMessagesRequest(node=self.node))
                for tree in pulled.message_object_trees:
                    self._handle(tree, pulled.messages_list[0].metadata.run_id)
            except (
                httpx.HTTPError,
                ObjectPushError,
            ) as error:  # the run is over, or a repeated call began a new session
                self.errors.append(error)

    def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        """Like a SuperNode, it repeats what a busy SuperLink could not do."""
        for _ in range(N_RETRIES):
            try:
                return method(request)
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
                    raise
                self._stop.wait(POLL_INTERVAL)
        return method(request)

    def _handle(self, tree: ObjectTree, run: int) -> None:
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(partial(self._call, self.client.PullObject), self.node, run),
            make_confirm_message_received_fn_protobuf(
                partial(self._call, self.client.ConfirmMessageReceived), self.node, run
            ),
            return_type=Message,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id  # which the object itself does not contain
        body = self.answer(message)
        if body is None or self._stop.wait(self.delay):
            return
        answered = reply(message, body, message_id="", ttl=message.metadata.ttl)
        answered.metadata.__dict__["_message_id"] = answered.object_id
        pushed = self._call(
            self.client.PushMessages,
            PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(answered))],
                message_object_trees=[get_object_tree(answered)],
                clientapp_runtime_list=[0.0],
            ),
        )
        push = make_push_object_fn_protobuf(
            partial(self._call, self.client.PushObject), self.node, run, pushed.session_id
        )
        push_objects(get_all_nested_objects(answered), push, object_ids_to_push=set(pushed.objects_to_push))
