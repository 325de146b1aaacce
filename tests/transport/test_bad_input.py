"""Whatever is wrong with an argument is said in one line before the ledger is charged; ledgers by path."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpsinkhorn.ot import COST_NAMES, L1L2, Cityblock, Cost, Euclidean, SquaredEuclidean
from dpsinkhorn.privacy import (
    Adjacency,
    Budget,
    BudgetExceededError,
    LaplaceMechanism,
    Ledger,
    SeededNoise,
    epsilon,
    read_ledger,
)
from dpsinkhorn.transport import (
    CappedCost,
    Clouds,
    DirectMechanism,
    Setting,
    TransportError,
    measure_tradeoff,
    noisy_sinkhorn,
    private_cost,
    two_stage_cost,
)
from dpsinkhorn.transport.charging import Account

NAN, INF = float("nan"), float("inf")
FUNCTIONS = {"cost": private_cost, "potentials": noisy_sinkhorn, "two-stage": two_stage_cost}
GOOD = {"x": [[0.0], [1.0]], "y": [[1.0]], "epsilon": 1.0, "delta": 1e-5, "cost_bound": 1.0}


class Fails(Cost):
    def pairwise(self, *_):
        raise RuntimeError("one\ntwo")


class Flat(Cost):
    def pairwise(self, x, y):
        return (x - y.mean(0)).sum(-1)


class Single(Cost):
    def pairwise(self, x, y):
        return torch.cdist(x.float(), y.float())


class Chebyshev(Cost):
    def pairwise(self, x, y):
        return (x[:, None] - y[None]).abs().amax(-1)


NOT_A_NUMBER = ["3", None, True, [1.0], np.ones(2), 1j, object(), NAN, INF, -1.0, 10**400]
COMMON = {
    "x": ["abc", ["a"], [["1"]], None, {}, [[0.0], [1.0, 2.0]], [[NAN]], [[1j]], [[True]], [], object(),
          np.zeros((2, 2, 2)), torch.zeros(2, 1).to_sparse(), torch.zeros(2, 1, dtype=torch.bool),
          np.array([["2020-01-01"]], dtype="datetime64[D]"), [[0.0, 1.0]]],
    "epsilon": [*NOT_A_NUMBER, 0.0],
    "cost_bound": [*NOT_A_NUMBER, 0, 1e-300, 1e300],
    "cost": ["chebyshev", "", 3, SquaredEuclidean, torch.cdist, np.zeros(2), L1L2("1"), L1L2(NAN),
             L1L2(-1), Fails(), Flat(), Single(), []],
    "regularization": ["1", True, False, [1.0], np.zeros(2), 1j, NAN, INF, -1.0, 1e-9, 1e9, 10**400],
    "public": ["z", 1, True, ["x"], np.array(["x", "y"])],
    "paired": ["no", 1, None, "x"],
    "ledger": [3, b"ledger", object(), ["ledger"], "no/such/folder/ledger", ".", ""],
    "budget": ["3", True, 0, -1.0, NAN, 2.0],  # 2.0: an open ledger has its own
    "noise": ["x", 0, SeededNoise, np.random.default_rng(0), torch.Generator()],
}  # fmt: skip
COMMON["y"] = COMMON["x"]
OWN = {
    "cost": {
        "delta": ["0", None, 1.0, -1e-5, NAN, [0.0], 1j],
        "confidence": ["0.9", None, 0.0, 1.0, NAN, [0.5]],
        "method": ["best", None, 3, ["direct"], np.array(["direct", "auto"]), "histogram"],
        "debiased": ["no", None, 1],
        "support": ["abc", [["a"]], [[0.0, 1.0]], [[NAN]], [], 1j],
        "gap": ["1", True, 0.0, -1.0, NAN, INF, 1e308],
    },
    "potentials": {
        "delta": ["0", None, 0.0, 1.0, -1e-5, NAN, [0.0]],
        "iterations": ["3", 0, -1, 2.5, True, [3], NAN],
        "mode": ["best", None, 3, ["sound"]],
        "adaptive": ["0", 0.5, 1.0, -1.0, NAN, None, [0.0]],
    },
    "two-stage": {
        "delta": ["0", None, 0.0, 1.0, -1e-5, NAN, [0.0]],
        "confidence": ["0.9", None, 0.0, 1.0, NAN, [0.5]],
        "share": ["0.5", 0.0, 1.0, NAN, [0.5], True],
        "iterations": ["3", 0, -1, 2.5, True, [3], NAN],
    },
}
CASES = [
    (function, name, number)
    for function, own in OWN.items()
    for name, values in {**COMMON, **own}.items()
    for number in range(len(values))
]


@pytest.mark.parametrize(("function", "name", "number"), CASES)
def test_refused_before_the_charge(tmp_path, function, name, number):
    value = {**COMMON, **OWN[function]}[name][number]
    with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(100.0, 1e-5)) as ledger:
        with pytest.raises(TransportError) as caught:
            FUNCTIONS[function](**{**GOOD, "ledger": ledger, name: value})
        assert ledger.statement().spends == ()
    told = str(caught.value)
    assert "\n" not in told
    assert len(told) < 300
    assert name in told or value in ("histogram", 1e308)  # which need a support, or noise that cannot be had


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_good_is_charged(tmp_path, function):
    """So that the refusals above are not of something else."""
    with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(100.0, 1e-5)) as ledger:
        FUNCTIONS[function](**GOOD, ledger=ledger)
        assert 0 < ledger.epsilon() <= 1


def test_the_message_for_a_cost():
    with pytest.raises(TransportError) as caught:
        private_cost([0.0], [1.0], epsilon=1, cost_bound=3, cost="chebyshev")
    message = str(caught.value)
    assert message.startswith(
        "cost: expected a Cost such as SquaredEuclidean(), Cityblock() or L1L2(), or one"
    )
    assert message.endswith(f"({', '.join(COST_NAMES)}), got 'chebyshev'")


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("sqeuclidean", SquaredEuclidean()),
        ("cityblock", Cityblock()),
        ("l1l2", L1L2(1.0)),
        ("euclidean", Euclidean()),
    ],
)
def test_costs_by_name(name, cost):
    assert Clouds.of([0.0], [1.0], cost_bound=1, cost=name).cost == CappedCost(cost, 1.0)
    for function in FUNCTIONS.values():
        first, second = (function(**GOOD, cost=given, noise=SeededNoise(0)).cost for given in (name, cost))
        assert first == second


def test_a_cost_of_ones_own():
    x, y = np.random.default_rng(0).random((2, 30, 2))
    found = private_cost(
        x, y, epsilon=1e6, cost_bound=2, regularization=0, cost=Chebyshev(), noise=SeededNoise(0)
    )
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    costs = cdist(x, y, "chebyshev")
    assert found.cost == pytest.approx(costs[linear_sum_assignment(costs)].mean(), abs=1e-3)


def test_arrays_of_any_layout():
    x = np.random.default_rng(0).random((6, 2))
    expected = Clouds.of(x, x, cost_bound=1).x
    x.flags.writeable = False
    for same in (
        x.astype(">f8"),
        np.asfortranarray(x),
        x[::-1][::-1],
        torch.from_numpy(x.copy()),
        x.tolist(),
    ):
        assert torch.equal(Clouds.of(same, x, cost_bound=1).x, expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Setting("3", 1, 1.0),
        lambda: Setting(0, 1, 1.0),
        lambda: Setting(1, 1, 1.0, paired="no"),
        lambda: Setting(1, 1, "1"),
        lambda: DirectMechanism.plan(Setting(1, 1, 1.0), "best", regularization=1.0, epsilon=1.0),
        lambda: DirectMechanism.plan(Setting(1, 1, 1.0), "entropic", regularization="1", epsilon=1.0),
        lambda: measure_tradeoff([0.0], [1.0], cost_bound=1, runs="3"),
        lambda: measure_tradeoff([0.0], [1.0], cost_bound=1, epsilons=1.0),
        lambda: measure_tradeoff([0.0], [1.0], cost_bound=1, epsilons="1"),
        lambda: measure_tradeoff([0.0], [1.0], cost_bound=1, epsilons=[1.0, -1.0]),
        lambda: measure_tradeoff([0.0], [1.0], cost_bound=1, delta="1"),
        lambda: measure_tradeoff([0.0], [1.0], cost_bound=1, seed="1"),
        lambda: measure_tradeoff([0.0], [1.0], cost_bound=1, debiased="no"),
        lambda: measure_tradeoff([0.0], [1.0], cost_bound=1, cost="chebyshev"),
        lambda: CappedCost("chebyshev", 1.0),
    ],
)
def test_what_charges_nothing_refuses_as_well(call):
    with pytest.raises(TransportError):
        call()


class TestLedgerByPath:
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_begun_kept_to_and_shared_with_an_open_one(self, tmp_path, function):
        path = tmp_path / "ledger.jsonl"
        FUNCTIONS[function](**GOOD, ledger=path, budget=1.2)
        FUNCTIONS[function](**{**GOOD, "epsilon": 0.1}, ledger=str(path))
        assert read_ledger(path).budget == Budget(1.2, 1e-5)
        before = path.read_bytes()
        with pytest.raises(BudgetExceededError, match=r"the ledger ledger\.jsonl allows epsilon 1\.2"):
            FUNCTIONS[function](**GOOD, ledger=path)
        assert path.read_bytes() == before
        with Ledger.open(path, epsilon) as ledger:
            assert len(ledger.statement().runs) == 2
            with pytest.raises(BudgetExceededError):
                FUNCTIONS[function](**GOOD, ledger=ledger)

    def test_a_budget_of_its_own_by_default(self, tmp_path):
        private_cost([0.0], [1.0], epsilon=0.7, cost_bound=1, ledger=tmp_path / "ledger")
        assert read_ledger(tmp_path / "ledger").budget == Budget(0.7, 0.0)

    def test_a_second_budget_is_refused(self, tmp_path):
        private_cost([0.0], [1.0], epsilon=1, cost_bound=1, ledger=tmp_path / "ledger", budget=5)
        with pytest.raises(TransportError, match="has its budget already"):
            private_cost([0.0], [1.0], epsilon=1, cost_bound=1, ledger=tmp_path / "ledger", budget=5)

    @pytest.mark.parametrize("change", [{"cost": "chebyshev"}, {"epsilon": -1}, {"y": "abc"}, {"noise": 3}])
    def test_bad_input_begins_none(self, tmp_path, change):
        with pytest.raises(TransportError):
            private_cost(**{**GOOD, "ledger": tmp_path / "ledger", "budget": 2, **change})
        assert list(tmp_path.iterdir()) == []

    def test_a_budget_that_is_too_small_begins_none(self, tmp_path):
        with pytest.raises(BudgetExceededError):
            private_cost([0.0], [1.0], epsilon=1, cost_bound=1, ledger=tmp_path / "ledger", budget=0.5)
        assert list(tmp_path.iterdir()) == []

    def test_what_another_process_began_is_left_as_it_is(self, tmp_path):
        """Begun between the check and the charge, with the same budget, which the charge would pass."""
        path = tmp_path / "ledger"
        account = Account.of(path, budget=0.5, epsilon=1.0, delta=0.0)
        Ledger.open(path, epsilon, budget=Budget(0.5, 0.0)).close()
        before = {file.name: (file.stat().st_ino, file.read_bytes()) for file in tmp_path.iterdir()}
        with pytest.raises(BudgetExceededError):
            account.spend(LaplaceMechanism(1.0, 1.0, Adjacency.REPLACE_ONE).charge(), what="c", paired=False)
        after = {file.name: (file.stat().st_ino, file.read_bytes()) for file in tmp_path.iterdir()}
        assert after == before

    def test_a_lock_is_never_taken_away(self, tmp_path):
        """It may be another process's, just about to hold it."""
        lock = tmp_path / "ledger.lock"
        lock.touch()
        before = lock.stat().st_ino
        with pytest.raises(BudgetExceededError, match=r"would allow epsilon 0\.5"):
            private_cost([0.0], [1.0], epsilon=1, cost_bound=1, ledger=tmp_path / "ledger", budget=0.5)
        assert lock.stat().st_ino == before
        assert list(tmp_path.iterdir()) == [lock]

    def test_something_else_is_left_as_it_is(self, tmp_path):
        (tmp_path / "other").write_text("hello")
        with pytest.raises(ValueError, match="other"):
            private_cost([0.0], [1.0], epsilon=1, cost_bound=1, ledger=tmp_path / "other")
        assert [file.name for file in tmp_path.iterdir()] == ["other"]
        assert (tmp_path / "other").read_text() == "hello"


def test_negative_costs_count_as_0_and_the_page_of_the_function_says_so():
    class Negative(Cost):
        def pairwise(self, x, y):
            return -(x[:, None, 0] - y[None, :, 0]).abs()

    assert CappedCost(Negative(), 1.0).pairwise(*torch.rand(2, 3, 1).double()).eq(0).all()
    for where in (private_cost, CappedCost):
        assert "negative" in where.__doc__
