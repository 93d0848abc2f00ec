# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from typing_extensions import CapsuleType

from ._error import Error

class ErrorCode(IntEnum):
    """Errors of gpurx itself: Error.code of category 'gpurx'.

    * ALREADY_RUNNING: another operation is pending on the same object.
    * TRANSPORT_UNAVAILABLE: the requested transport cannot work here. Error.advice names the missing prerequisite.
    * NO_CUDA: the library was built without CUDA, or no driver is installed.
    * MEMORY_TOO_SMALL: the memory is too small for `max_flows` flows.
    * TOO_MANY_FLOWS: the session already has `max_flows` flows.
    * MEMORY_LOCKED_UP: out-of-order data held every page, and the flow was ended. Give the session more memory.
    * FOREIGN_MEMORY: data arrived in device memory of another process, and the flow is over.
    * MIXED_FRAGMENTS: a segment lies in both device and host memory, and the flow is over. The NIC driver is at fault.
    * QUEUE_BUSY: another user holds a queue that the session needs.
    * JOURNAL_INVALID: a journal in the state directory is damaged or of another program. Nothing was changed.
    * BAD_DESTINATION: the transport cannot write to memory of this size or kind.
    * WRONG_GPU: the stream belongs to another GPU than the memory.
    * UNUSABLE_STREAM: the stream is being captured into a CUDA graph, or is CU_STREAM_PER_THREAD.
    * BEYOND_LOAN_LIMIT: a call asked for more bytes than one flow may have on loan.
    """

    ALREADY_RUNNING = ...
    TRANSPORT_UNAVAILABLE = ...
    NO_CUDA = ...
    MEMORY_TOO_SMALL = ...
    TOO_MANY_FLOWS = ...
    MEMORY_LOCKED_UP = ...
    FOREIGN_MEMORY = ...
    MIXED_FRAGMENTS = ...
    QUEUE_BUSY = ...
    JOURNAL_INVALID = ...
    BAD_DESTINATION = ...
    WRONG_GPU = ...
    UNUSABLE_STREAM = ...
    BEYOND_LOAN_LIMIT = ...

class IngestErrorCode(IntEnum):
    """Errors of loads and of tensor streams: Error.code of category 'gpurx.ingest'.

    * BAD_URL: the text is no URL of http, https, s3 or hf, or the URL cannot be used.
    * BAD_RESPONSE: the answer is not HTTP/1.1, or its header is larger than 16 KiB.
    * HTTP_STATUS: the server answered with a status that is no success. See Error.status, NotFound and Forbidden.
    * BAD_REDIRECT: the server redirected more than 10 times, or to a URL that cannot be used.
    * UNKNOWN_SIZE: the answer has no length.
    * WRONG_RANGE: the answer has other bytes than the requested ones.
    * OBJECT_CHANGED: the object has changed since the load began.
    * GAVE_UP: the server is slower than `timeout`, `min_speed` or `deadline` allow, or every attempt ended early.
    * WRONG_CHECKSUM: the bytes do not have the announced checksum.
    * BAD_SAFETENSORS: the file breaks the format.
    * BAD_FRAME: a sender sent bytes that are no frame of this version.
    * STREAM_CUT: a sender's connection ended before its last frame, and the sender did not reconnect in time.
    * WRONG_SOURCE: a sender has the number of another sender, or a number outside the stream.
    * NO_CREDENTIALS: there are no credentials for S3, or the service that issues them returned none.
    * TLS_FAILURE: TLS with the server failed, or a file of `ca`, `cert` or `key` cannot be used.
    * WRONG_SECRET: a sender does not know the stream's secret, or uses version 1 of the protocol, which has none.
    * EPOCH_ENDED: all sources have ended an epoch. This is no failure.
    * MIRRORS_DIFFER: the URLs of an object have different content.
    """

    BAD_URL = ...
    BAD_RESPONSE = ...
    HTTP_STATUS = ...
    BAD_REDIRECT = ...
    UNKNOWN_SIZE = ...
    WRONG_RANGE = ...
    OBJECT_CHANGED = ...
    GAVE_UP = ...
    WRONG_CHECKSUM = ...
    BAD_SAFETENSORS = ...
    BAD_FRAME = ...
    STREAM_CUT = ...
    WRONG_SOURCE = ...
    NO_CREDENTIALS = ...
    TLS_FAILURE = ...
    WRONG_SECRET = ...
    EPOCH_ENDED = ...
    MIRRORS_DIFFER = ...

class Tensor:
    """A contiguous row-major tensor in memory of a GPU or of the host.

    A Tensor has no arithmetic. numpy, torch and cupy take it with from_dlpack(), without a copy. The memory lives as
    long as the Tensor or a consumer uses it. Any thread may use a Tensor.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions, a tuple."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def dtype(self) -> str:
        """Name of the element type in numpy or torch: 'float32', 'bfloat16'."""

    @property
    def nbytes(self) -> int:
        """Number of bytes."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def device(self) -> str:
        """'cpu' or 'cuda:0'."""

    @property
    def readonly(self) -> bool:
        """True if consumers must not write."""

    @property
    def data_ptr(self) -> int:
        """Address of the bytes. On a GPU, only work on a stream that was passed to __dlpack__() may read them."""

    def view(self, dtype: Any) -> Tensor:
        """Return the same memory as elements of another type, by name or dtype.

        The size of the last dimension changes with the size of an element. Use it for consumers that lack this type.
        Raises ValueError if the bytes of the last dimension are no multiple of an element.
        """

    def numpy(self, dtype: Any = None) -> Any:
        """Return a numpy array of the tensor's type, or converted to `dtype`.

        The array shares host memory, and is a copy of GPU memory. ml_dtypes provides types that numpy lacks. Elements
        of four bits become bytes. Raises TypeError if numpy and ml_dtypes lack the type.
        """

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Implement numpy.asarray() as numpy() does. Raises ValueError if copy=False needs a copy."""

    def __len__(self) -> int:
        """Return the size of the first dimension."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device of the memory."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Return a DLPack capsule of the tensor, as the array API standard specifies.

        On a GPU, later work on `stream` sees the bytes. The memory is used again only after the work that the
        consumer enqueued on the stream until it released the tensor. None is CUDA's legacy default stream, and -1
        skips the order. Raises BufferError if the tensor cannot be on `dl_device` without a copy, or is read-only and
        the consumer is older than DLPack 1.0.
        """

class Session:
    def __init__(
        self,
        memory: Any,
        size: int,
        interface: str,
        transport: str,
        allow_zcrx: bool,
        rx_queues: int,
        max_flows: int,
        rx_page_size: int,
        state_directory: str,
    ) -> None: ...
    @property
    def transport(self) -> str:
        """Transport in use: "devmem", "zcrx" or "copy"."""

    @property
    def why_not_devmem(self) -> str:
        """Reason against devmem, as the name of a gpurx::transport_obstacle (session.hpp), such as "no_rights".

        "none" if devmem is in use. explain() has the text.
        """

    @property
    def why_not_zcrx(self) -> str:
        """Reason against zcrx, as the name of a gpurx::transport_obstacle (session.hpp), such as "not_allowed".

        "none" if zcrx is in use. explain() has the text.
        """

    @property
    def memory(self) -> str:
        """Description of the memory and of its exporter."""

    @property
    def queues(self) -> list[int]:
        """Numbers of the NIC's queues that the session uses."""

    @property
    def notices(self) -> list[str]:
        """Notices of the session so far: see rx_session_options::notice."""

    @property
    def closed(self) -> bool:
        """True after close()."""

    def explain(self) -> str:
        """Return the transport in use and the reason against a better one, a line for each.

        After a load by https it adds that neither devmem nor zcrx can receive https.
        """

    def stats(self) -> dict[str, int]:
        """Return counters of all flows so far. The fields are those of gpurx::stats (stats.hpp)."""

    def pool_stats(self) -> dict[str, Any] | None:
        """Return the states of the memory's pages. The fields are those of gpurx::pool_stats (stats.hpp).

        These exclude each other and add up to `pages`: free, in_ring (posted in the NIC's rings, by their size),
        in_queues (in sockets, or kept for the next packet), on_loan, parked (waiting for GPU streams) and in_reads. A
        count that the driver does not keep is None. The result is None if the kernel reports nothing. The call costs
        some netlink calls.
        """

    def close(self) -> None:
        """Restore the NIC once the last receiver has ended. Further calls do nothing."""


class Operation:
    def is_over(self) -> bool: ...
    def wait(self, seconds: float = -1) -> bool: ...
    def cancel(self) -> None: ...
    def hurry(self) -> None: ...
    def fileno(self) -> int: ...
    def result(self) -> Any: ...

class StreamPosition:
    def __init__(self) -> None: ...
    def state(self) -> dict[str, Any]: ...
    @staticmethod
    def of_state(state: dict[str, Any]) -> StreamPosition: ...
    @property
    def epoch(self) -> int: ...

class StreamOptions:
    def __init__(self) -> None: ...
    sources: int
    rank: int
    world_size: int
    batch_size: int
    drop_last: bool
    queue_depth: int
    shuffle: int
    seed: int
    position: StreamPosition
    def set_order(self, name: str) -> None: ...
    def set_acknowledge(self, name: str) -> None: ...
    def set_secret(self, secret: bytes) -> None: ...
    def set_timeouts(self, start: float, reconnect: float, stall: float) -> None: ...

class Sender:
    def __init__(
        self,
        address: str,
        source: int,
        resume: bool,
        secret: bytes,
        connect_timeout: float,
        reconnect: float,
        timeout: float | None,
        window: int,
    ) -> None: ...
    def connect(self) -> None: ...
    def greet(self) -> None: ...
    def send(self, arrays: Sequence[tuple[str, int, Sequence[int], int, int]]) -> None: ...
    def end_epoch(self) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def frames(self) -> int: ...
    def received(self) -> int: ...
    def acknowledged(self) -> int: ...


class TensorReceiver:
    def __init__(
        self,
        session: Session,
        listen: Sequence[tuple[str, int]],
        connect: Sequence[tuple[str, int]],
        memory: Any,
        options: StreamOptions,
    ) -> None: ...
    def next(self) -> Operation: ...
    def acknowledge(self, until: StreamPosition) -> None: ...
    def close(self) -> None: ...
    def addresses(self) -> list[tuple[str, int]]: ...
    def errors(self) -> list[tuple[int | None, Error]]: ...
    def stats(self) -> dict[str, int]: ...

class HttpOptions:
    def __init__(self) -> None: ...
    flows: int
    chunk_size: int
    attempts: int
    min_speed: int
    mirrors: list[str]
    keep_connections: bool
    def with_mirrors(self, urls: Sequence[str]) -> HttpOptions: ...
    def with_deadline(self, seconds: float) -> HttpOptions: ...
    def set_times(self, timeout: float, deadline: float) -> None: ...
    def set_checksum(self, name: str) -> None: ...
    def set_headers(self, headers: Sequence[tuple[str, str]]) -> None: ...
    def set_bearer(self, token: str) -> None: ...
    def set_tls(self, ca_file: str, ca_directory: str, certificate: str, key: str) -> None: ...
    def set_s3(self, endpoints: Sequence[str], region: str, anonymous: bool, profile: str, addressing_style: str) -> None: ...
    def set_credentials(
        self,
        function: Callable[[str], tuple[str, str, str, list[tuple[str, str]], float | None]],
        is_fallback: bool,
    ) -> None: ...
    def check(self) -> None: ...

class TensorFile:
    @property
    def tensors(self) -> list[tuple[str, str, tuple[int, ...], int]]: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def url(self) -> str: ...
    @property
    def commit(self) -> str: ...
    @property
    def etag(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def bytes_placed(self) -> int: ...
    def fetch(self, indices: Sequence[int], together: bool = False, can_wait: bool = False) -> Operation: ...
    def fetch_into(self, places: Sequence[tuple[int, int]], can_wait: bool = False) -> Operation: ...
    def fetch_part(
        self, index: int, extents: Sequence[tuple[int, int, int]], shape: Sequence[int], can_wait: bool = False
    ) -> Operation: ...

class FlowBudget:
    def __init__(self, flows: int) -> None: ...

def open_url(
    session: Session | None, url: str, device: Any, options: HttpOptions, goes_on: bool, budget: FlowBudget | None = None
) -> Operation: ...
def list_s3(prefix: str, options: HttpOptions) -> Operation: ...
def list_files(directory: str, recursive: bool, options: HttpOptions) -> Operation: ...
def is_checkpoint(place: str) -> bool: ...
def url_at_commit(url: str, commit: str) -> str: ...
def check_one_commit(files: Sequence[tuple[str, str]]) -> None: ...
def redacted_url(url: str) -> str: ...
def read_url(session: Session | None, url: str, at_most: int, options: HttpOptions) -> Operation: ...

class OpenObject:
    def __init__(
        self, session: Session | None, url: str, device: Any, options: HttpOptions, budget: FlowBudget | None = None
    ) -> None: ...
    def fetch(self, ranges: Sequence[tuple[int, int]]) -> Operation: ...

def crc32c(address: int, nbytes: int, before: int = 0) -> int: ...
def load_object(session: Session, url: str, device: Any, options: HttpOptions) -> Operation: ...
def bytes_of(tensor: Tensor) -> Tensor: ...
def tensor_of_bytes(
    data: bytes, dtype: str, shape: Sequence[int], device: Any = "host", read_only: bool = False
) -> Tensor: ...
def parse_device(device: Any) -> int: ...
def local_gpu() -> int:
    """Return the number of this process' GPU, for "gpu:N" in memory= and device=.

    It is LOCAL_RANK, as torchrun sets it, among the visible GPUs. It is 0 without LOCAL_RANK, or if
    CUDA_VISIBLE_DEVICES names one GPU alone. Raises Error if there is no such GPU, or LOCAL_RANK is no number.
    """

def note(text: str) -> None: ...
def warn_of_leaks(warn: bool) -> None: ...
def stop() -> None: ...
