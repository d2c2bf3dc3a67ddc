"""The bank: hooks that fail in every way, their effects that were not undone, and ``resolve``."""

from typing import TYPE_CHECKING

from tests.simulation.chance import Weighted
from tests.simulation.loop import PROCESS, Process
from transfer_async import NO_ORDER, HoldFailed, Order, PreflightFailed
from transfer_async._models.requests import OrderIntent

if TYPE_CHECKING:
    from tests.simulation.world import World

ACTING = Weighted(
    (3, "refuses"),
    (1, "breaks"),
    (1, "hangs"),
    (2, "acts and breaks"),
    (1, "acts and hangs"),
    (1, "says nothing"),
)
SCREENING = Weighted((1, "refuses"), (1, "breaks"))
UNDOING = Weighted((3, "breaks"), (2, "acts and breaks"), (1, "hangs"))
ASKING = Weighted((3, "does not know"), (1, "breaks"), (1, "hangs"), (2, "takes its time"))
FOREVER = 500.0  # in seconds: longer than every timeout


class Step:
    """A hook of the bank. All workers share its effects, which outlast every worker."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name

    async def before(self, intent: OrderIntent) -> str:
        world = self.world
        world.witness.asked(self.name, intent)
        PROCESS.get().on_the_way_to("before")
        how = ACTING.draw(world.chance) if world.trouble("hook") else "acts"
        await world.sleep(world.chance.latency())
        if how == "refuses":
            raise HoldFailed if self.name == "hold" else PreflightFailed
        if how == "breaks":
            raise RuntimeError
        if how == "hangs":
            await world.sleep(FOREVER)
        reference = world.bank.act(self.name, intent)
        await world.sleep(world.chance.latency())
        if how == "acts and breaks":
            raise RuntimeError
        if how == "acts and hangs":
            await world.sleep(FOREVER)
        return "" if how == "says nothing" else reference

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        world = self.world
        world.witness.undoing(self.name, intent)
        PROCESS.get().on_the_way_to("undo")
        how = UNDOING.draw(world.chance) if world.trouble("undo") else "acts"
        if self.name == world.setting.stubborn:
            how = "breaks"
        await world.sleep(world.chance.latency())
        if how == "breaks":
            world.saw("undo failed")
            raise RuntimeError
        if how == "hangs":
            await world.sleep(FOREVER)
        if not world.calm and world.lateness.once_in(0.2):
            world.saw("late undo")
            await world.sleep(100.0 * world.lateness.random())
        world.bank.take_back(self.name, intent)
        world.witness.taken_back(self.name, intent, receipt)
        await world.sleep(world.chance.latency())
        if how == "acts and breaks":
            raise RuntimeError


class Bank:
    """The bank's effects by hook and intent. Repeated calls place or release an effect only once.

    The bank also records the intent that each hook last saw.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.open: dict[tuple[str, str], str] = {}
        self.seen: dict[tuple[str, str], OrderIntent] = {}
        self.late: dict[tuple[str, str], tuple[Process | None, float]] = {}

    def act(self, name: str, intent: OrderIntent) -> str:
        world, place = self.world, (name, intent.id)
        world.note(f"the bank does {name} for {intent.id}")
        self.seen[place] = intent
        if intent.id in world.witness.over and place not in self.open:
            # The worker slept while others ended its intent, so it must undo this, unless it dies first.
            world.saw("acted late")
            self.late[place] = (PROCESS.get(), world.loop.time())
        return self.open.setdefault(place, f"{name} of {intent.id}")

    async def screening(self, intent: OrderIntent) -> None:
        """A hook that is a plain function: it checks the beneficiary and has nothing to undo."""
        world = self.world
        world.witness.asked("screening", intent)
        how = SCREENING.draw(world.chance) if world.trouble("hook") else "passes"
        await world.sleep(world.chance.latency())
        if how == "refuses":
            raise PreflightFailed
        if how == "breaks":
            raise RuntimeError
        self.seen["screening", intent.id] = intent

    def take_back(self, name: str, intent: OrderIntent) -> None:
        self.world.note(f"the bank takes back {name} for {intent.id}")
        self.open.pop((name, intent.id), None)

    async def resolve(self, intent: OrderIntent, doubt: Exception) -> Order | str | None:
        """Look up an order in the back office. Return `NO_ORDER` if it does not exist."""
        world = self.world
        how = ASKING.draw(world.chance) if world.trouble("ask") else "looks"
        world.saw("resolve asked")
        await world.sleep(world.chance.latency())
        if how == "breaks":
            raise RuntimeError
        if how == "hangs":
            await world.sleep(FOREVER)
        if how == "does not know" or world.setting.resolve == "ignorant":
            return None
        seen = world.service.order_of(intent.id)
        # The result may be outdated when it is returned.
        await world.sleep(
            100.0 * world.chance.random() if how == "takes its time" else world.chance.latency()
        )
        if seen is None:
            return NO_ORDER
        return seen.id if world.setting.resolve == "id" else Order.from_json(seen.reply)

    async def token(self) -> str:
        """Return the bearer token, or raise as if its source were down."""
        await self.world.sleep(self.world.chance.latency())
        if self.world.trouble("hook"):
            raise RuntimeError
        return "secret"
