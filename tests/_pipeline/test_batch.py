"""Creating many orders at once: for any input, orders in flight and memory stay within the limit."""

import asyncio
import contextlib
import contextvars
import gc
import itertools
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing

import pytest

from tests.support.bank import Gate, new_order, refused_order, turns
from tests.support.cases import each
from transfer_async import ClientClosed, InvalidOrder, KeyState, OrderRequest, OutcomeUnknown, Refused
from transfer_async._models.responses import Order
from transfer_async._pipeline.batch import Batch, OrderResult
from transfer_async.sandbox import StallAfterProcessing

ORDER = new_order()


@pytest.fixture(autouse=True)
async def nothing_hangs() -> AsyncIterator[None]:
    """Check that no task is still running, and that no task's error was ignored."""
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert unheard == []


class Input:
    """An endless input, or one that ends in an error, that counts the items the batch takes."""

    def __init__(self, *, fails_after: int | None = None) -> None:
        self.taken = 0
        self.alive: weakref.WeakSet[OrderRequest] = weakref.WeakSet()
        self._fails_after = fails_after

    def _next(self) -> OrderRequest:
        if self.taken == self._fails_after:
            raise LookupError("the input broke")
        self.taken += 1
        request = OrderRequest(ORDER, key=f"k-{self.taken}")
        self.alive.add(request)
        return request

    def sync(self) -> Iterator[OrderRequest]:
        while True:
            yield self._next()

    async def awaited(self) -> AsyncIterator[OrderRequest]:
        while True:
            await asyncio.sleep(0)
            yield self._next()

    def of(self, kind: str):
        return self.sync() if kind == "sync" else self.awaited()


BOTH = pytest.mark.parametrize("kind", ["sync", "async"])


class Service:
    """A fake service that returns orders and counts concurrent calls."""

    def __init__(self, order: Order, *, fails: Callable[[str], bool] = lambda _: False) -> None:
        self.order, self.fails = order, fails
        self.now = self.most = self.ended = 0
        self.began: list[str] = []
        self.cut: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    async def create(self, request: OrderRequest) -> Order:
        self.now += 1
        self.most = max(self.most, self.now)
        self.began.append(request.key)
        try:
            await (self.gates[request.key].wait() if request.key in self.gates else asyncio.sleep(0))
            if self.fails(request.key):
                raise Refused(status=422, key=request.key)
            self.ended += 1
            return self.order
        except asyncio.CancelledError:
            self.cut.append(request.key)
            raise
        finally:
            self.now -= 1

    def hold(self, *keys: str) -> None:
        self.gates.update({key: asyncio.Event() for key in keys})


@pytest.fixture
def service() -> Service:
    return Service(object.__new__(Order))


def batch(service: Service, requests, concurrency: int = 4):
    return aclosing(Batch(service.create, requests, concurrency=concurrency).results())


async def collect(results, collected: list[OrderResult]) -> None:
    """Append all results to ``collected``, also those that come before an error."""
    async with results as left:
        async for result in left:
            collected.append(result)  # noqa: PERF401 - a comprehension would lose them at an error


def keys(results: list[OrderResult]) -> list[str]:
    return [result.request.key for result in results]


# --- back-pressure --------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("concurrency", [1, 4, 64])
async def test_a_slow_consumer_holds_back_an_endless_input(service, kind, concurrency):
    source = Input()
    async with batch(service, source.of(kind), concurrency) as results:
        handed_out = 0
        async for _ in results:
            handed_out += 1
            await turns(20)
            # The consumer's current result counts as in flight until it requests the next one.
            assert source.taken <= handed_out - 1 + concurrency
            if handed_out == 200:
                break

    assert service.most <= concurrency


@BOTH
async def test_memory_stays_flat_over_many_orders(service, kind):
    source = Input()
    most = 0
    async with batch(service, source.of(kind), 64) as results:
        async for _ in results:
            most = max(most, len(source.alive))
            if service.ended >= 2_000:
                break

    assert most <= 64 + 4  # the orders in flight, and a few results that the consumer has not taken yet


@pytest.mark.parametrize("concurrency", [1, 64])
async def test_orders_in_flight_reach_the_concurrency_and_never_exceed_it(service, concurrency):
    requests = [OrderRequest(ORDER, key=f"k-{number}") for number in range(200)]
    async with batch(service, requests, concurrency) as results:
        collected = [result async for result in results]

    assert sorted(keys(collected)) == sorted(request.key for request in requests)
    assert service.most == concurrency


# --- results --------------------------------------------------------------------------------------


async def test_results_are_yielded_in_order_of_completion(service):
    service.hold("a", "b", "c")
    requests = [OrderRequest(ORDER, key=key) for key in "abc"]
    collected = []
    async with batch(service, requests) as results:
        for key in "bca":
            ahead = asyncio.ensure_future(anext(results))
            await turns(5)
            service.gates[key].set()
            collected.append(await ahead)

    assert keys(collected) == ["b", "c", "a"]


@pytest.mark.parametrize("odd", [None, 7, "k", ORDER, {"order": ORDER}])
async def test_a_value_that_is_not_a_request_is_an_invalid_order_and_the_others_continue(service, odd):
    good = OrderRequest(ORDER, key="good")
    async with batch(service, [odd, good]) as results:
        by_request = {id(result.request): result async for result in results}

    assert isinstance(by_request[id(odd)].error, InvalidOrder)
    assert by_request[id(odd)].error.order_may_exist  # An earlier sender may have used this key for an order.
    assert by_request[id(good)].error is None
    assert service.began == ["good"]


async def test_a_call_cancelled_by_other_code_is_in_doubt_and_the_batch_ends(service):
    service.hold("a")
    async with batch(service, [OrderRequest(ORDER, key=key) for key in "ab"]) as results:
        collected = [await anext(results)]
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "Batch._create_one" in repr(task):
                task.cancel()
        collected.append(await anext(results))

    assert keys(collected) == ["b", "a"]
    assert isinstance(collected[1].error, OutcomeUnknown)
    assert (collected[1].error.key, collected[1].error.order_may_exist) == ("a", True)


def test_an_exception_that_ends_the_program_is_raised():
    async def create(_: OrderRequest) -> Order:
        raise SystemExit(7)

    async def main() -> None:
        async with aclosing(Batch(create, Input().sync(), concurrency=2).results()) as results:
            await anext(results)

    with pytest.raises(SystemExit, match="7"):
        asyncio.run(main())


# --- inputs ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_an_error_of_the_input_is_raised_after_all_earlier_results(service, kind, concurrency):
    collected = []
    with pytest.raises(LookupError, match="the input broke"):
        await collect(batch(service, Input(fails_after=6).of(kind), concurrency), collected)

    assert sorted(keys(collected)) == [f"k-{number}" for number in range(1, 7)]


class Plain:
    """An async input whose ``__anext__`` is a plain function that raises when called."""

    def __init__(self, error: BaseException) -> None:
        self.left, self.error = 2, error

    def __aiter__(self) -> "Plain":
        return self

    def __anext__(self):
        if not self.left:
            raise self.error
        self.left -= 1
        future = asyncio.get_running_loop().create_future()
        future.set_result(OrderRequest(ORDER, key=f"k-{self.left}"))
        return future


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
async def test_an_error_raised_before_the_input_can_be_awaited_also_follows_earlier_results(service, error):
    collected = []
    with pytest.raises(error):  # the batch must not treat a cancelled input as finished
        await collect(batch(service, Plain(error())), collected)

    assert len(collected) == service.ended == 2


async def test_an_input_runs_in_one_task_from_start_to_end(service):
    ran_in: set[asyncio.Task | None] = set()
    mine = contextvars.ContextVar("mine", default=0)

    async def requests() -> AsyncIterator[OrderRequest]:
        async with asyncio.timeout(60), asyncio.TaskGroup():
            for number in range(5):
                assert mine.get() == number
                mine.set(number + 1)
                ran_in.add(asyncio.current_task())
                yield OrderRequest(ORDER, key=f"k-{number}")

    async with batch(service, requests(), 1) as results:
        assert len([result async for result in results]) == 5
    assert len(ran_in) == 1


async def test_results_are_yielded_while_the_input_is_waiting_and_leaving_cancels_its_read(service):
    ended = []

    async def requests() -> AsyncIterator[OrderRequest]:
        try:
            yield OrderRequest(ORDER, key="a")
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async with batch(service, requests(), 1) as results:
        collected = [await anext(results)]
        await turns(5)

    assert keys(collected) == ["a"]
    assert ended == [True]


async def test_an_input_that_swallows_cancellation_is_read_no_further(service):
    source, cancelled = Input(), asyncio.Event()

    async def requests() -> AsyncIterator[OrderRequest]:
        for request in source.sync():
            yield request
            with contextlib.suppress(asyncio.CancelledError):
                await cancelled.wait()
            cancelled.set()

    async with batch(service, requests(), 64) as results:
        await anext(results)
        await turns(2)

    assert len(service.began) < source.taken <= 3


async def test_an_input_that_fails_unobserved_leaves_no_unretrieved_error(service):
    async with batch(service, Input(fails_after=2).awaited()) as results:
        await anext(results)
        await turns(20)  # by now, the input has raised its error

    assert service.ended == 2


class Holding:
    """An endless input whose resource must be released by the task that opened it; records the release."""

    def __init__(self, *, waits: asyncio.Event | None = None) -> None:
        self.waits, self.closing = waits, asyncio.Event()
        self.opened_in: asyncio.Task | None = None
        self.closed_in: asyncio.Task | None = None

    async def __aiter__(self) -> AsyncIterator[OrderRequest]:
        try:
            # Don't use a task group: since Python 3.13, leaving one cancels a cancelled task again.
            async with asyncio.timeout(60):
                self.opened_in = asyncio.current_task()
                for number in itertools.count():
                    yield OrderRequest(ORDER, key=f"k-{number}")
        finally:
            self.closing.set()
            if self.waits is not None:
                await self.waits.wait()
            self.closed_in = asyncio.current_task()


@pytest.mark.parametrize("slow", [False, True])
async def test_leaving_closes_an_idle_input_in_its_own_task(service, slow):
    source = Holding(waits=asyncio.Event() if slow else None)

    async def let_it_close() -> None:
        await source.closing.wait()
        if slow:
            source.waits.set()

    async with batch(service, source, 2) as results:
        await anext(results)
        await turns(20)  # the batch has read as many inputs as it may
        letting = asyncio.create_task(let_it_close())

    await letting
    assert source.closed_in is source.opened_in is not None


async def cancelled_at_work(service: Service, requests, concurrency: int) -> None:
    """Consume one result, and be cancelled later, when no order may still be in flight."""
    left_running = None

    async def consume() -> None:
        nonlocal left_running
        try:
            async with batch(service, requests, concurrency) as results:
                await anext(results)
        finally:
            left_running = service.now

    consumer = asyncio.create_task(consume())
    await turns(20)
    consumer.cancel()
    await asyncio.wait([consumer])
    assert consumer.cancelled()
    assert left_running == 0


async def test_a_consumer_cancelled_while_the_input_closes_stops_waiting(service):
    source = Holding(waits=asyncio.Event())
    await cancelled_at_work(service, source, 2)

    assert source.opened_in is not None
    assert source.opened_in.done()


async def breaks_on_closing() -> AsyncIterator[OrderRequest]:
    try:
        yield OrderRequest(ORDER, key="k")
        await asyncio.Event().wait()
    finally:
        raise LookupError("the input broke")


async def test_an_input_that_fails_on_closing_causes_no_other_error(service):
    async with batch(service, breaks_on_closing(), 2) as results:
        await anext(results)
        await turns(20)

    assert service.ended == 1


async def closed_client(request: OrderRequest) -> Order:
    raise ClientClosed(key=request.key)


async def test_a_second_result_of_a_closed_client_does_not_interrupt_the_inputs_cleanup():
    source = Holding(waits=asyncio.Event())
    async with aclosing(Batch(closed_client, source, concurrency=2).results()) as results:
        await anext(results)
        await anext(results)
        await source.closing.wait()  # The first result ended the input, which now runs its clean-up.
        # The second result arrives before the clean-up ends.
        asyncio.get_running_loop().call_soon(source.waits.set)
        assert [result async for result in results] == []

    assert source.closed_in is source.opened_in is not None


async def test_an_input_that_fails_after_the_client_was_closed_raises_its_error():
    with pytest.raises(LookupError):
        await collect(aclosing(Batch(closed_client, breaks_on_closing(), concurrency=2).results()), [])


async def test_an_input_that_is_not_a_generator_is_not_closed(service):
    class Stream(Plain):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    source = Stream(StopAsyncIteration())
    async with batch(service, source) as results:
        await anext(results)

    assert not source.closed


# --- leaving --------------------------------------------------------------------------------------


async def test_orders_in_flight_finish_when_the_iterator_is_dropped(service):
    source = Input()
    results = Batch(service.create, source.sync(), concurrency=3).results()
    async for _ in results:
        break
    del results
    gc.collect()
    await turns(20)

    assert service.ended == source.taken <= 1 + 3
    assert service.cut == []


async def test_orders_in_flight_finish_when_the_consumer_leaves_early(service):
    service.hold("k-2", "k-3")

    async def open_the_gates() -> None:
        for gate in service.gates.values():
            await turns(20)  # meanwhile, the batch starts to close
            gate.set()

    async with batch(service, Input().sync(), 3) as results:
        await anext(results)
        opening = asyncio.create_task(open_the_gates())

    assert opening.done()
    assert (service.ended, service.cut) == (3, [])


@pytest.mark.parametrize(
    ("kind", "held"), [("sync", ["k-2", "k-3"]), ("async", ["k-1", "k-2"])], ids=["leaving", "waiting"]
)
async def test_cancelling_a_consumer_cancels_the_orders_in_flight(service, kind, held):
    service.hold(*held)
    await cancelled_at_work(service, Input().of(kind), int(held[-1][-1]))

    assert sorted(service.cut) == held


# --- with a client --------------------------------------------------------------------------------


@each("concurrency", [0, -1, 1.0, True, "4", None])
async def test_an_invalid_concurrency_is_refused_at_once(world, concurrency):
    async with world.client() as client:
        with pytest.raises(ValueError, match=r"^concurrency: must be a whole number, 1 or more"):
            client.create_orders([], concurrency=concurrency)


@each("requests", [None, 7, ORDER, OrderRequest(ORDER), object()])
async def test_an_input_that_is_not_iterable_is_refused_at_once(world, requests):
    async with world.client() as client:
        with pytest.raises(TypeError):
            client.create_orders(requests)


async def test_valid_and_invalid_orders_each_have_a_result(world):
    wishes = [
        OrderRequest(refused_order() if number % 3 == 0 else ORDER, key=f"k-{number}") for number in range(30)
    ]
    async with world.client() as client:
        by_key = {result.request.key: result async for result in client.create_orders(wishes, concurrency=8)}

    assert len(by_key) == 30
    assert sum(isinstance(one.error, Refused) for one in by_key.values()) == 10
    assert {one.order.id for one in by_key.values() if one.order} == set(world.sandbox.orders)
    assert len(world.bank.open) == 20


@BOTH
async def test_after_leaving_early_the_journal_knows_every_order(world, kind):
    source = Input()
    async with world.client() as client:
        async with aclosing(client.create_orders(source.of(kind), concurrency=8)) as results:
            for _ in range(5):
                assert (await anext(results)).order
        known = [await client.known(f"k-{number}") for number in range(1, source.taken + 1)]

    assert 5 <= len(known) <= 5 + 8
    assert {one.state for one in known} == {KeyState.CREATED}
    assert {one.order_id for one in known} == set(world.sandbox.orders)


async def test_cancelling_the_consumer_undoes_unsent_orders_and_close_finishes_sent_ones(world):
    in_hook = Gate()

    async def wait_for_k2(intent) -> None:
        if intent.key == "k-2":
            await in_hook()

    world.bank.on_placed = wait_for_k2
    world.sandbox.faults.add(StallAfterProcessing())
    client = world.made()

    async def consume() -> None:
        async with aclosing(client.create_orders(Input().sync(), concurrency=2)) as results:
            await anext(results)

    consumer = await in_hook.catches(consume())
    await world.sandbox.stalled()
    consumer.cancel()
    await asyncio.wait([consumer])
    unsent = await world.known("k-2")
    world.sandbox.faults.release()
    await client.close()
    sent = await world.entry("k-1")

    assert consumer.cancelled()
    assert unsent.state is KeyState.FREE
    assert [receipt for _, receipt in world.bank.released] == [None]
    assert sent.state is KeyState.CREATED
    assert {sent.order_id} == set(world.sandbox.orders)
    assert len(world.bank.open) == 1


@BOTH
async def test_closing_the_client_ends_an_endless_input(world, kind):
    source = Input()
    collected = []
    async with world.client() as client:
        async for result in client.create_orders(source.of(kind), concurrency=4):
            collected.append(result)
            if len(collected) == 3:
                await client.close()

    # Four orders are in flight when the client is closed. Each lets one more be taken, which is refused.
    assert len(collected) == source.taken <= 3 + 4 + 4
    assert isinstance(collected[-1].error, ClientClosed)
    assert sum(result.order is not None for result in collected) == len(world.sandbox.orders)


async def test_closing_the_client_ends_an_input_that_never_yields_again(world):
    async def requests() -> AsyncIterator[OrderRequest]:
        for number in range(3):
            yield OrderRequest(ORDER, key=f"k-{number}")
        await asyncio.Event().wait()

    collected = []
    async with asyncio.timeout(60), world.client() as client:
        async for result in client.create_orders(requests(), concurrency=2):
            collected.append(result)
            if len(collected) == 1:
                await client.close()

    assert isinstance(collected[-1].error, ClientClosed)


async def test_results_waiting_while_the_client_closes_are_still_yielded(world):
    source = Input()
    async with world.client() as client:
        results = client.create_orders(source.sync(), concurrency=4)
        collected = [await anext(results)]
        await world.sandbox.created(4)
        await client.close()  # the orders exist, but the consumer has not taken their results
        collected += [result async for result in results]

    created = [result for result in collected if result.order is not None]
    assert {result.order.id for result in created} == set(world.sandbox.orders)
    assert len(created) >= 4
    assert all(isinstance(result.error, ClientClosed) for result in collected if result.order is None)
    assert len(collected) == source.taken
