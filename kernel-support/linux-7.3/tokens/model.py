#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The protocol of array tokens (net/core/devmem_token.c), in all interleavings.

    model.py [MUTATION]

One page, which the NIC fills a few times, and two sockets: packets of both may be in the page. Each socket has a thread
that receives, and one that returns tokens: at any time, whether it was told them or not. What is one atomic operation in
the kernel is one step here, and what a CPU may do before its turn is a step at any time. Without a name all mutations are
tried, too: each leaves out one rule of the protocol, and must be found. litmus/ has the order of the memory by itself.

Then the protocol of shared tokens, likewise (model_shared.py).

Last: how many control messages put_cmsgs_room() (net/core/scm.c) finds room for is how many put_cmsg_notrunc()
writes, in the native layout and in that of 32-bit programs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import model_shared
from interleavings import Page, Violation, explore, put

FILLS = 2
ATTEMPTS = 3
MUTATIONS = {
    "no pending": "a token can be returned before it is committed",
    "keep the spare": "a user that has a reference keeps that of the next skb",
    "commit blindly": "a commit adds to a count that it read before",
    "last of all": "the last return of a page that is about to be handed out again puts no reference",
    "close one": "a socket that is closed takes back a token, and leaves others of the page",
    "early reference": "the skb's reference is given away before the user is told",
    "shared handover": "the reference of a cloned skb is given away",
    "forged": "any socket may return a page",
    "twice": "a return does not look at what the page says",
    "no undo": "a claim stays when the user cannot be told",
    "uncounted": "receipts are not counted",
    "no reclaim": "pages stay out when their socket is closed",
    "reclaim all": "the pages of other sockets are taken back as well",
    "claim blindly": "a page is claimed that is out",
    "keep both": "each of two packets of an skb keeps its reference of a page that is claimed for both",
    "commit one": "a page that is claimed for two packets is committed for one",
    "clean all": "a page that the user has is not kept when the log is cleaned",
    "clean for good": "a page that is marked while the log is cleaned stays so",
    "begin again": "the log begins again while pages are out",
    "look early": "a return reads the reference count before its compare-and-exchange, for want of an acquire",
}
SHARED = "shared tokens"  # their protocol; with a comma and a name, a mutation of it
ROOM = "room for what fits"  # the mutation of check_room()

# struct dmabuf_cmsg, and the space of a control message with it, by layout
DATA = 24
NATIVE, COMPAT = 16 + DATA, 12 + DATA


@dataclass(frozen=True)
class Word:
    """The user field of a net_iov."""
    owner: int = 0
    pending: bool = False           # the owner is about to be handed the page
    out: int = 0                    # tokens that the owner has and can return


@dataclass(frozen=True)
class Socket:
    queue: tuple[bool, ...] = ()    # packets of the page; whether the skb is cloned
    pc: str = "idle"                # of the receiving thread
    claimed: bool = False
    pair: bool = False              # for two packets that one skb has
    retried: bool = False
    holds: int = 0                  # array tokens that it was told
    tokens: int = 0                 # of its xarray
    received: int = 0
    returned: int = 0
    attempts: int = ATTEMPTS
    putting: int = 0                # references that a return has come by from the xarray
    taking: int = 0                 # the same from the page
    before: int = 0                 # the count that a commit has read
    seen: int = 0                   # the reference count, where a return has read it early
    logged: bool = False            # the page is in the log of what was handed out
    closed: bool = False


@dataclass(frozen=True)
class State(Page):
    word: Word = Word()
    refs: int = 0
    pool: bool = True
    fills: int = FILLS
    data: int = 0                   # who has the data of a cloned skb: it, and its clone
    clone: bool = False             # somebody has that, and looks at the page
    sockets: tuple[Socket, Socket] = (Socket(), Socket())

    def check_free(self) -> None:
        for one in self.sockets:
            # A clone keeps the reference of its skb
            if one.holds or one.tokens or any(not cloned for cloned in one.queue) or self.clone:
                raise Violation("a page is free that somebody has")


def identity(number: int) -> int:
    return number + 1


def nic(state: State) -> Iterator[State]:
    """The page is filled: with packets of one socket, or of both."""
    if not state.pool or not state.fills or any(one.closed for one in state.sockets):
        return
    for for_first, for_second in ((1, 0), (0, 1), (1, 1), (2, 0)):
        for cloned in (False, True):
            if cloned and for_first != 1:
                continue
            filled = replace(state, pool=False, fills=state.fills - 1, refs=for_first + for_second, data=2 * cloned, clone=cloned)
            filled = filled.having(0, queue=filled.sockets[0].queue + (cloned,) * for_first)
            yield filled.having(1, queue=filled.sockets[1].queue + (False,) * for_second)


def put_data(state: State) -> State:
    """An skb or its clone is freed: the last one puts what both refer to."""
    state = replace(state, data=state.data - 1)
    return state if state.data else put(state)


def look(state: State) -> Iterator[State]:
    """Whoever has the clone has seen enough."""
    if state.clone:
        yield put_data(replace(state, clone=False))


def claim(word: Word, mine: int, broken: str) -> Word | None:
    """The page is the socket's already, or nobody has it."""
    if word.pending or word.owner not in (0, mine):
        if broken != "claim blindly":
            return None
        word = Word()
    return Word(mine, broken != "no pending", word.out + (broken == "no pending"))


def cancel(word: Word) -> Word:
    return Word(word.owner, False, word.out) if word.out else Word()


def clean(state: State, number: int, broken: str) -> Iterator[State]:
    """The log is full: mark what the user has, drop the rest, and take the marks off."""
    one = state.sockets[number]
    if one.pc == "cleaned":
        left = state.word if broken == "clean for good" else cancel(state.word)
        yield replace(state, word=left).having(number, pc="idle")
    elif one.pc == "idle" and one.logged and not one.closed:
        if state.word.owner == identity(number) and not state.word.pending:
            marked = replace(state, word=replace(state.word, pending=True))
            yield marked.having(number, pc="cleaned", logged=broken != "clean all")
        else:
            yield state.having(number, logged=False)


def receive(state: State, number: int, broken: str) -> Iterator[State]:
    """recvmsg(): claim, tell the user, commit, free the skb."""
    one = state.sockets[number]
    mine = identity(number)
    handover = bool(one.queue) and (not one.queue[0] or broken == "shared handover")
    tokens = 1 + one.pair
    if one.pc == "idle" and one.queue and not one.closed:
        claimed = claim(state.word, mine, broken)
        state = replace(state, word=claimed or state.word)
        logged = one.logged and one.received != one.returned and broken != "begin again"
        told = state.having(number, pc="told", claimed=claimed is not None, logged=logged)
        yield told
        if claimed and one.queue == (False, False):
            yield told.having(number, pair=True)
    elif one.pc == "told":
        # Either the control message was written ...
        pc = "pair" if one.pair and broken != "keep both" else "reference"
        yield state.having(number, pc=pc, holds=one.holds + one.claimed * tokens)
        # ... or not, once
        if not one.retried:
            early = broken == "early reference" and handover
            undone = replace(state, word=cancel(state.word)) if one.claimed and broken != "no undo" and state.word.owner == mine else state
            undone = undone.having(number, pc="idle", retried=True, pair=False)
            yield put(undone) if early and one.claimed else undone
    elif one.pc == "pair":
        yield replace(state, refs=state.refs - 1).having(number, pc="reference")
    elif one.pc == "reference":
        if one.claimed and broken == "commit blindly":
            yield state.having(number, pc="blind", before=state.word.out)
        elif one.claimed and state.word.out and broken != "no pending":
            yield again(state, number, state.word.out, handover, broken)
        else:
            state = state if handover else replace(state, refs=state.refs + 1)
            yield state.having(number, pc="commit")
    elif one.pc == "blind":
        if one.before:
            yield again(state, number, one.before, handover, broken)
        else:
            state = state if handover else replace(state, refs=state.refs + 1)
            yield state.having(number, pc="commit")
    elif one.pc == "commit":
        if one.claimed:
            if broken != "no pending":
                state = replace(state, word=Word(mine, False, 1 if broken == "commit one" else tokens))
            state = state.having(number, received=one.received + (broken != "uncounted") * tokens, logged=True)
        else:
            state = state.having(number, tokens=one.tokens + 1)
        # An skb whose reference went to the user does not read the page any more
        yield state.having(number, pc="eaten", queue=one.queue[tokens:]) if handover else state.having(number, pc="free")
    elif one.pc == "spare":
        state = state.having(number, pc="eaten", queue=one.queue[tokens:])
        yield state if broken == "keep the spare" else put(state)
    elif one.pc == "free":
        state = state.having(number, pc="idle", queue=one.queue[1:], claimed=False)
        yield put_data(state) if one.queue[0] else put(state)
    elif one.pc == "eaten":
        yield state.having(number, pc="idle", claimed=False, pair=False)


def again(state: State, number: int, out: int, handover: bool, broken: str) -> State:
    """Commit a page that the user has, and a reference on it: the skb keeps its own."""
    tokens = 1 + state.sockets[number].pair
    received = state.sockets[number].received + (broken != "uncounted") * tokens
    state = replace(state, word=Word(identity(number), False, out + tokens))
    return state.having(number, pc="spare" if handover else "free", received=received, logged=True)


def take(state: State, number: int) -> State:
    """Put the reference of an array token: without another one the page goes straight to its pool."""
    one = state.sockets[number]
    if (one.seen or state.refs) == 1 and state.refs > 1:
        raise Violation("a page goes to its pool that has more references")
    return put(state.having(number, taking=one.taking - 1, seen=0))


def give_back(state: State, number: int, broken: str) -> Iterator[State]:
    """SO_DEVMEM_DONTNEED with either kind of token, told or guessed."""
    one = state.sockets[number]
    if one.closed:
        return
    if one.putting:
        yield put(state.having(number, putting=one.putting - 1))
        return
    if one.taking:
        yield take(state, number)
        return
    if not one.attempts:
        return
    if broken == "look early" and state.refs and not one.seen:
        yield state.having(number, seen=state.refs)
    state = state.having(number, attempts=one.attempts - 1)
    word = state.word
    matches = word.owner == identity(number) and word.out > 0
    if broken == "forged":
        matches = word.out > 0
    if broken == "twice":
        matches = not word.pending
    if matches:
        left = cancel(replace(word, out=word.out - 1)) if word.out <= 1 and not word.pending else replace(word, out=word.out - 1)
        last = word.out <= 1 and not (broken == "last of all" and word.pending)
        holds = max(one.holds - 1, 0)
        yield replace(state, word=left).having(number, holds=holds, returned=one.returned + 1, taking=int(last))
    if one.tokens:
        yield state.having(number, tokens=one.tokens - 1, putting=1)


def close(state: State, number: int, broken: str) -> Iterator[State]:
    """The socket is destroyed: nobody is in a system call on it."""
    one = state.sockets[number]
    if one.closed or one.pc != "idle" or one.putting or one.taking or state.fills:
        return
    refs = len(one.queue) - sum(one.queue) + one.tokens
    after = state.having(number, closed=True, queue=(), tokens=0, holds=0)
    for _ in range(sum(one.queue)):
        after = put_data(after)
    out = one.received - one.returned if broken != "no reclaim" and one.logged and state.word.owner == identity(number) else 0
    if out and broken == "close one" and state.word.out > 1:
        after = replace(after, word=replace(state.word, out=state.word.out - 1))
    elif out or broken == "reclaim all" and state.word.out and not state.word.pending:
        after = replace(after, word=Word())
        refs += 1
    yield put(after, refs) if refs else after


def steps(state: State, broken: str) -> Iterator[State]:
    yield from nic(state)
    yield from look(state)
    for number in range(2):
        yield from receive(state, number, broken)
        yield from clean(state, number, broken)
        yield from give_back(state, number, broken)
        yield from close(state, number, broken)


def check_end(state: State) -> None:
    """Nothing more can happen."""
    if not all(one.closed for one in state.sockets):
        raise Violation("a socket cannot be closed")
    if state.refs or state.word != Word() or not state.pool:
        raise Violation("a page is lost")


def check_room(divided: bool) -> str:
    """put_cmsg_notrunc() wants the length in the native layout, and takes the space in the program's own."""
    sizes = range(64 * NATIVE)
    for space in NATIVE, COMPAT:
        for size in sizes:
            left, written = size, 0
            while left >= NATIVE:
                left -= min(space, left)
                written += 1
            room = (size - NATIVE) // space + 1 if size >= NATIVE else 0
            if divided:
                room = size // space
            if room != written:
                raise Violation(f"{size} bytes have room for {written} of {space} bytes, not {room}")
    return f"{2 * len(sizes)} buffers, no violation"


def verdict_of(broken: str) -> tuple[str, bool]:
    """What was found, and whether it should be; `broken`: a mutation, or what is whole."""
    whole = broken in ("", SHARED, "room")
    try:
        if broken in ("room", ROOM):
            found = check_room(broken == ROOM)
        elif broken.startswith(SHARED):
            rule = broken.removeprefix(SHARED).lstrip(", ")
            found = f"{explore(model_shared.State(), lambda state: model_shared.steps(state, rule), model_shared.check_end)} states, no violation"
        else:
            found = f"{explore(State(), lambda state: steps(state, broken), check_end)} states, no violation"
        return found, whole
    except Violation as violation:
        return f"found: {violation}", not whole


def main() -> int:
    failed = 0
    shared = [SHARED, *(f"{SHARED}, {rule}" for rule in model_shared.MUTATIONS)]
    for broken in sys.argv[1:] or ["", *MUTATIONS, *shared, "room", ROOM]:
        verdict, good = verdict_of(broken)
        print(f"{'ok' if good else 'FAIL'}  {broken or 'the protocol'}: {verdict}", flush=True)
        failed += not good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
