"""How records are copied out of a window, and how the number of threads is chosen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from readers import take as takes
from readers.take import LAST_TRY, TRY_CALLS, Team, Teams, take, take_rows


@pytest.mark.parametrize("rows", [0, 1, 100, 3000])
def test_records_are_copied_in_the_order_asked(rows: int) -> None:
    """Small and large gathers give the records asked for, into new memory and into the caller's."""
    window = torch.arange(4000 * 300, dtype=torch.float32).view(4000, 300)
    records = np.random.default_rng(0).integers(0, 4000, rows)
    out = torch.empty(rows, 300)
    assert take(window, records, out) is out
    assert torch.equal(out, window[records])
    found = take(window, records)
    assert torch.equal(found, out)
    found.fill_(-1)
    assert torch.equal(out, window[records])


@pytest.mark.parametrize(("rows", "length"), [(0, 5), (1, 1), (100, 132), (3000, 8), (400, 4096)])
def test_rows_are_copied_in_the_order_asked(rows: int, length: int) -> None:
    """Few bytes and many, of rows that lie one behind the other."""
    memory = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 500 * length).astype(np.uint8))
    numbers = np.random.default_rng(1).integers(0, 500, rows)
    out = torch.full((rows, length), 7, dtype=torch.uint8)
    take_rows(memory, numbers, out)
    assert torch.equal(out, memory.view(500, length)[numbers])


def test_the_number_of_threads_is_put_back() -> None:
    """A gather that takes one thread leaves torch's setting as it found it."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        take(torch.zeros(100, 1000), np.arange(100))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("openmp", [True, False])
def test_threads_that_begin_meanwhile_find_torch_as_it_was(monkeypatch: pytest.MonkeyPatch, openmp: bool) -> None:
    """A gather takes one thread without telling the others: one that the user starts just then has all of torch's."""
    if not openmp:
        monkeypatch.setattr(takes, "set_own_threads", None)
    elif takes.set_own_threads is None:
        pytest.skip("this torch has no OpenMP to ask")
    select, found = torch.index_select, []

    def seen(*args: Any, **options: Any) -> torch.Tensor:
        with ThreadPoolExecutor(1) as another:
            found.append(another.submit(torch.get_num_threads).result())
        return select(*args, **options)

    monkeypatch.setattr(torch, "index_select", seen)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    window, records = torch.arange(4000 * 300).view(4000, 300), np.arange(4000)[::-3].copy()
    try:
        with ThreadPoolExecutor(1) as reader:
            assert reader.submit(torch.get_num_threads).result() == 3
            for out in (None, torch.empty(len(records), 300, dtype=torch.int64)):
                copied = reader.submit(takes.alone, window, records, out).result()
                assert torch.equal(copied, window[records.tolist()])
            assert reader.submit(torch.get_num_threads).result() == 3
        assert takes.alone(window, records[:0]).shape == (0, 300)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert found
    assert set(found) == {3}


def _run(team: Team, cost: dict[bool, float], calls: int) -> list[bool]:
    chosen = []
    for _ in range(calls):
        chosen.append(team.together)
        team.note(cost[team.together])
    return chosen


@pytest.mark.parametrize("better", [True, False])
def test_the_quicker_way_is_taken_and_the_other_tried_ever_less(better: bool) -> None:
    """After both were tried the quicker is taken; tries of the slower get rarer, but never end."""
    team = Team()
    chosen = _run(team, {better: 1.0, not better: 10.0}, 5000)
    slower = [i for i, together in enumerate(chosen) if together != better]
    assert 10 < len(slower) < 20 * TRY_CALLS
    assert max(np.diff(slower)) <= LAST_TRY + TRY_CALLS


def test_a_try_that_is_clearly_slower_ends_at_once() -> None:
    """One call by one thread tells; several threads have to wake first, and one that is nearly as quick is tried on."""
    chosen = _run(Team(), {True: 1.0, False: 1.3}, 1000)
    assert [i for i in range(4, 1000) if not chosen[i] and not chosen[i - 1]] == []
    chosen = _run(Team(), {True: 1.3, False: 1.0}, 1000)
    assert all(chosen[i - 1] or chosen[i + 1] for i in range(4, 999) if chosen[i])
    chosen = _run(Team(), {True: 1.0, False: 1.2}, 1000)
    assert chosen.count(False) % TRY_CALLS == 0


def test_the_first_call_after_the_other_way_does_not_count() -> None:
    """Several threads that have to wake first, and are quicker from then on, are kept."""
    team = Team()
    chosen: list[bool] = []
    for _ in range(1000):
        woken = bool(chosen) and chosen[-1]
        chosen.append(team.together)
        team.note((1.0 if woken else 50.0) if team.together else 2.0)
    assert np.mean(chosen[100:]) > 0.95


def test_a_change_is_noticed() -> None:
    """When the other way becomes the quicker one, it is taken from its next try on."""
    team = Team()
    _run(team, {True: 1.0, False: 2.0}, 1000)
    chosen = _run(team, {True: 4.0, False: 2.0}, 1000)
    assert not any(chosen[8:16])
    assert np.mean(chosen[8:]) < 0.05


def test_one_slow_call_changes_nothing() -> None:
    """What was the quicker way stays it when one call has to wait, as the first of an epoch does."""
    team = Team()
    _run(team, {True: 1.0, False: 2.0}, 100)
    while not team.together:
        team.note(2.0)
    _run(team, {True: 1.0, False: 2.0}, 2)
    team.note(100.0)
    assert _run(team, {True: 1.0, False: 2.0}, 20).count(False) <= 1  # a try


def test_other_threads_start_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large gather in a thread beside the main one takes one of torch's threads."""
    monkeypatch.setattr(takes, "_TEAMS", Teams())
    monkeypatch.setattr(Teams, "of", lambda *_: pytest.fail("it asked for a team"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(take, torch.zeros(100, 300_000 // 4), np.arange(100)).result()


def _ways(monkeypatch: pytest.MonkeyPatch, *sizes: int, after: float = 0.0) -> list[str]:
    """How gathers of so many bytes are done, one behind the other; `after` seconds lie between any two."""
    now = [0.0]
    monkeypatch.setattr(takes, "_TEAMS", Teams())
    monkeypatch.setattr(takes.time, "perf_counter", lambda: now[0])
    found = []
    for size in sizes:
        takes.quicker(size, lambda: found.append("several"), lambda: found.append("one"))  # type: ignore[arg-type, return-value]
        now[0] += after
    return found


def test_small_gathers_use_threads_that_are_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a large one that used several, and soon; not before it, not later, and not where there is too little."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    large, small, least = takes.TEAM_BYTES, takes.AWAKE_BYTES, takes.AWAKE_BYTES - 1
    assert _ways(monkeypatch, small, large, small, least) == ["one", "several", "several", "one"]
    assert _ways(monkeypatch, large, small, after=2 * takes.AWAKE_SECONDS) == ["several", "one"]
    monkeypatch.setattr(takes, "has_team", lambda: False)
    assert _ways(monkeypatch, large, small) == ["one", "one"]
    monkeypatch.setattr(takes, "has_team", lambda: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert _ways(monkeypatch, large, small) == ["one", "one"]
