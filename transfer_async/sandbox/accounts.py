"""The people and the bank that a sandbox knows, and the limits of their currencies."""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import msgspec
from attrs import field, frozen

PaymentTypes = Mapping[str, Mapping[str, str]]


@frozen(kw_only=True)
class CurrencyAccount:
    """What an account holds in one currency (specification, section 2.5).

    Amounts are in units of the currency. `steps` is counted from zero; `Decimal(0)` means any amount.
    An account without `payment_types` cannot be paid in this currency.
    """

    code: str
    min_amount: Decimal = Decimal("1")
    max_amount: Decimal = Decimal("10000")
    steps: Decimal = Decimal("0.01")
    payment_types: PaymentTypes = field(factory=dict, repr=False)
    can_trade_with: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.min_amount <= self.max_amount or self.steps < 0:
            raise ValueError(f"{self.code}: 0 <= min_amount <= max_amount and steps >= 0 are required")


@frozen(kw_only=True, eq=False)
class Account:
    """One account of the service; two accounts are the same only if they are one object.

    `payable` says whether it has a valid receiving bank account. `is_bank` marks the one account that
    owns the token; its username may be a plain name. `email` is the username unless given, and `id` is
    made from it.
    """

    username: str
    firstname: str
    lastname: str
    middlename: str | None = None
    email: str = ""
    country: str = "Nigeria"
    country_abbreviation: str = "NG"
    timezone: str = "Africa/Lagos"
    currencies: tuple[CurrencyAccount, ...] = ()
    active: bool = True
    payable: bool = True
    is_bank: bool = False
    id: str = ""

    def __attrs_post_init__(self) -> None:
        # What is left empty follows from the username, so that an account is the same in every sandbox.
        object.__setattr__(self, "email", self.email or self.username)
        object.__setattr__(self, "id", self.id or str(uuid5(NAMESPACE_URL, f"sandbox:{self.username}")))

    def holding(self, code: str) -> CurrencyAccount | None:
        """Find what the account holds in a currency; the code's case does not matter."""
        wanted = code.upper()
        return next((held for held in self.currencies if held.code.upper() == wanted), None)


class Accounts:
    """Accounts by username, case-folded, with exactly one bank among them.

    Raises:
        ValueError: no bank or several, or a username given twice.
    """

    def __init__(self, accounts: Iterable[Account]) -> None:
        self._by_username: dict[str, Account] = {}
        for account in accounts:
            self.add(account)
        banks = [account for account in self if account.is_bank]
        if len(banks) != 1:
            raise ValueError(f"accounts must hold exactly one account with is_bank, not {len(banks)}")
        self.bank: Account = banks[0]

    def __iter__(self) -> Iterator[Account]:
        return iter(self._by_username.values())

    def __len__(self) -> int:
        return len(self._by_username)

    def __contains__(self, username: object) -> bool:
        return isinstance(username, str) and username.casefold() in self._by_username

    def __getitem__(self, username: str) -> Account:
        return self._by_username[username.casefold()]

    def get(self, username: str) -> Account | None:
        """Find an account by its username, whatever its case."""
        return self._by_username.get(username.casefold())

    def add(self, account: Account) -> None:
        """Register one more account; a username is registered once (`ValueError`)."""
        if account.username in self:
            raise ValueError(f"account {account.username!r} is given twice")
        self._by_username[account.username.casefold()] = account


def load_accounts(path: str | Path) -> tuple[Account, ...]:
    """Read accounts from a JSON file: an array of objects with the fields of `Account`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such an array; the message names the place and the rule.
    """
    return accounts_from_json(Path(path).read_bytes())


def accounts_from_json(document: bytes) -> tuple[Account, ...]:
    """Read accounts from a JSON array of objects; amounts may be numbers or decimal strings, exact."""
    try:
        return msgspec.json.decode(document, type=tuple[Account, ...])
    except msgspec.MsgspecError as error:
        raise ValueError(f"accounts: {error}") from error
