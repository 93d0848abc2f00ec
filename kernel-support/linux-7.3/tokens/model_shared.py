# SPDX-License-Identifier: GPL-2.0-only
"""The protocol of shared tokens (autorelease=0), in all interleavings; model.py runs it.

One page, which the NIC fills a few times, and two sockets of the binding, each with a thread that receives. Any thread of the
users returns what one of them was told, once for each time. At any moment the dmabuf is unbound: what is out is taken back then,
and what is still queued gets other tokens, which are not part of this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from interleavings import Page, Violation, put

FILLS = 2

MUTATIONS = {
    "count first": "the reference of all receipts comes after their count",
    "keep the second": "who was not first keeps the reference that it took",
    "count blindly": "a receipt is counted whether or not others are",
    "below zero": "a return counts down what is not out",
    "each puts": "each return puts a reference, not the last one",
    "unbind unseen": "who has told a token does not look whether the dmabuf was unbound",
    "looked before": "it looks before its count can be seen, for want of a barrier",
    "unbind in two": "unbinding reads the count, and clears it later",
    "no unshare": "unbinding does not take back what is out",
}


@dataclass(frozen=True)
class Socket:
    queue: int = 0      # packets of the page
    pc: str = "idle"    # of the receiving thread
    unbound: bool = False   # what it saw, where it looks too early
    retried: bool = False
    closed: bool = False


@dataclass(frozen=True)
class State(Page):
    word: int = 0
    refs: int = 0
    pool: bool = True
    fills: int = FILLS
    told: int = 0           # tokens that users have and that count: not after unbinding
    putting: int = 0        # references that returns have come by
    unbound: bool = False
    unbinding: str = ""     # what net_devmem_unshare() does next
    sockets: tuple[Socket, Socket] = (Socket(), Socket())

    def check_free(self) -> None:
        if any(one.queue for one in self.sockets):
            raise Violation("a page is free that is in a packet")
        if self.told:
            raise Violation("a page is free that somebody was told of")


def nic(state: State) -> Iterator[State]:
    """The page is filled: with packets of one socket, or of both. Not once its queue has other memory."""
    if not state.pool or not state.fills or state.unbound or any(one.closed for one in state.sockets):
        return
    for first, second in ((1, 0), (1, 1), (2, 0)):
        filled = replace(state, pool=False, fills=state.fills - 1, refs=first + second)
        filled = filled.having(0, queue=filled.sockets[0].queue + first)
        yield filled.having(1, queue=filled.sockets[1].queue + second)


def count_down(state: State, broken: str) -> State:
    """A return, or a receipt that is undone: the last one puts the reference of all."""
    if state.word == 0 and broken != "below zero":
        return state
    last = state.word == 1 or broken == "each puts"
    return replace(state, word=state.word - 1, putting=state.putting + last)


def claim(state: State, number: int, broken: str) -> Iterator[State]:
    """net_devmem_claim_shared()"""
    one = state.sockets[number]
    if one.pc == "claim":
        if broken == "count first":
            first = state.word == 0
            yield replace(state, word=state.word + 1).having(number, pc="late reference" if first else "tell")
        elif state.word or broken == "count blindly":
            yield replace(state, word=state.word + 1).having(number, pc="tell")
        else:
            yield replace(state, refs=state.refs + 1).having(number, pc="count")
    elif one.pc == "late reference":
        yield replace(state, refs=state.refs + 1).having(number, pc="tell")
    elif one.pc == "count":
        was_first = state.word == 0 or broken == "keep the second"
        yield replace(state, word=state.word + 1).having(number, pc="tell" if was_first else "drop")
    elif one.pc == "drop":
        yield put(state).having(number, pc="tell")


def receive(state: State, number: int, broken: str) -> Iterator[State]:
    """recvmsg(): look for the binding, claim, tell the user, see whether it was unbound, free the skb."""
    one = state.sockets[number]
    if one.pc == "idle" and one.queue and not one.closed:
        if not state.unbound:
            yield state.having(number, pc="early look" if broken == "looked before" else "claim")
        # Else it gets a token of its socket's xarray, which keeps a reference until it is returned
        else:
            yield state.having(number, pc="free")
    elif one.pc == "early look":
        yield state.having(number, pc="claim", unbound=state.unbound)
    elif one.pc == "tell":
        # Either the control message was written ...
        told = state.told + (not state.unbound)
        yield replace(state, told=told).having(number, pc="look")
        # ... or not, once
        if not one.retried:
            yield count_down(state, broken).having(number, pc="idle", retried=True)
    elif one.pc == "look":
        unbound = one.unbound if broken == "looked before" else state.unbound and broken != "unbind unseen"
        after = count_down(state, broken) if unbound else state
        yield after.having(number, pc="free")
    elif one.pc == "free":
        yield put(state.having(number, pc="idle", queue=one.queue - 1))


def give_back(state: State, broken: str) -> Iterator[State]:
    """SO_DEVMEM_DONTNEED through whichever socket; also of what was told before the dmabuf was unbound."""
    if state.putting:
        yield put(replace(state, putting=state.putting - 1))
    if state.told:
        yield count_down(replace(state, told=state.told - 1), broken)


def unbind(state: State, broken: str) -> Iterator[State]:
    """net_devmem_unshare()"""
    if not state.unbound:
        # What users were told may come back later, and changes nothing then
        yield replace(state, unbound=True, told=0, unbinding="done" if broken == "no unshare" else "exchange")
    elif state.unbinding == "exchange" and broken == "unbind in two":
        yield replace(state, unbinding="clear" if state.word else "done")
    elif state.unbinding == "exchange":
        yield replace(state, word=0, unbinding="put" if state.word else "done")
    elif state.unbinding == "clear":
        yield replace(state, word=0, unbinding="put")
    elif state.unbinding == "put":
        yield put(replace(state, unbinding="done"))


def close(state: State, number: int) -> Iterator[State]:
    """The socket is destroyed: nobody is in a system call on it. What it was told stays out."""
    one = state.sockets[number]
    if one.closed or one.pc != "idle":
        return
    after = state.having(number, closed=True, queue=0)
    yield put(after, one.queue) if one.queue else after


def steps(state: State, broken: str) -> Iterator[State]:
    yield from nic(state)
    yield from give_back(state, broken)
    yield from unbind(state, broken)
    for number in range(2):
        yield from claim(state, number, broken)
        yield from receive(state, number, broken)
        yield from close(state, number)


def check_end(state: State) -> None:
    """Nothing more can happen."""
    if not all(one.closed for one in state.sockets):
        raise Violation("a socket cannot be closed")
    if state.refs or state.word or not state.pool:
        raise Violation("a page is lost")
