"""The messages of serving_api.proto and translation.proto.

`protos.bin` holds what protoc makes of the two files (`make protos`). It is loaded as it is, not as
generated code, because that ties a package to the versions of protobuf around the one that it was
generated with.
"""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _load() -> dict:
    """The classes of all messages, by their names within their packages."""
    data = Path(__file__).with_name("protos.bin").read_bytes()
    pool, classes = descriptor_pool.Default(), {}
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
        for message in pool.FindFileByName(file.name).message_types_by_name.values():
            classes[message.name] = message_factory.GetMessageClass(message)
    return classes


globals().update(_load())
