"""`rlhf vote`: voting in a terminal or through a pipe, under the rules of the annotate page.

A line is a key, and after a space its argument: `7 the left one dodges the question` votes and
gives the reason.
"""

import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from pydantic import ValidationError

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import list_faults
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.api_types.votes import VoteFields
from rlhf_pipeline.core.conversations import render_transcript
from rlhf_pipeline.core.errors import ConfigurationError, PipelineError
from rlhf_pipeline.core.records import Choice, Token, User, utc_now
from rlhf_pipeline.web.annotate.cards import CardContent
from rlhf_pipeline.web.permissions import Permission, Principal, permissions_of
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.votes.casting import prepare_vote

# Key: choice and strength; left is a on every card. The same as on the page.
CHOICES: dict[str, tuple[Choice, int | None]] = {
    **{str(n): (Choice.A, 5 - n) for n in range(1, 5)},
    "5": (Choice.TIE, None),
    **{str(n): (Choice.B, n - 5) for n in range(6, 10)},
    "0": (Choice.BOTH_BAD, None),
    "s": (Choice.SKIP, None),
}
KEYS = """\
1 2 3 4   left is much, clearly, somewhat, slightly better        5  equally good
9 8 7 6   right is much, clearly, somewhat, slightly better       0  both bad     s  skip
          each may be followed by a reason: 7 it answers the question
u  undo   ?  these keys   q  quit"""


@dataclass
class VotingSession:
    """One annotator's sitting."""

    site: Site
    principal: Principal
    lines: Iterator[str]
    out: TextIO
    cast: list[tuple[str, CardContent]] = field(default_factory=list)  # (vote, card), newest last

    def run(self, most: int | None) -> int:
        """Deal and cast until no card is left, the lines end, `q`, or `most` votes; the number of
        votes.
        """
        n = 0
        while most is None or n < most:
            rules = self.site.store.rules.latest()[1]
            cards = self.site.cards.deal(self.principal.user_id, 1, rules)
            if not cards:
                self.say("No card is left for you. A curator offers more on the page Comparisons.")
                return n
            step = self.judge(cards[0], n)
            if step is None:
                self.site.cards.release(cards[0].card.card_id, self.principal.user_id)
                return n
            n += step
        return n

    def judge(self, card: CardContent, n: int) -> int | None:
        """Show a card and read lines until a vote (1), an undo of the previous vote (-1), or the
        end (None).
        """
        prompt = render_transcript(card.texts.prompt)
        self.say(
            f"\n──── {n + 1} ────\n{prompt}\n\n── left (1-4) ──\n{card.left}\n\n── "
            f"right (6-9) ──\n{card.right}\n"
        )
        if card.names_maker:
            self.say("(a completion mentions its model: judge the text, not the name)")
        shown_at = time.monotonic()
        for line in self.lines:
            key, _, rest = line.strip().partition(" ")
            try:
                if key == "q":
                    return None
                if key == "u":
                    if self.undo():
                        return -1
                elif key in CHOICES:
                    self.vote(card, key, rest.strip(), time.monotonic() - shown_at)
                    return 1
                else:
                    self.say(KEYS if key in ("?", "") else f"no key {key!r}\n{KEYS}")
            except (Problem, PipelineError, ValueError) as refused:
                self.say(f"not done: {refused}")
        return None

    def vote(self, card: CardContent, key: str, reason: str, seconds: float) -> None:
        choice, strength = CHOICES[key]
        fields = {
            "choice": choice,
            "strength": strength,
            "reason": reason or None,
            "duration_s": round(seconds, 2),
        }
        self.cast.append((self.send(card, fields), card))

    def undo(self) -> bool:
        """Take back the newest vote of this sitting, as a vote that supersedes it; its card comes
        again.
        """
        if not self.cast:
            self.say("nothing to undo in this sitting")
            return False
        vote_id, card = self.cast[-1]
        self.send(card, {"choice": Choice.SKIP, "flags": ["undone"], "supersedes": vote_id})
        self.cast.pop()
        self.say("taken back")
        return True

    def send(self, card: CardContent, fields: dict[str, Any]) -> str:
        try:
            vote_fields = VoteFields(card_id=card.card.card_id, **fields)
        except ValidationError as cause:
            raise ConfigurationError(list_faults(cause)) from cause
        new = prepare_vote(self.site, self.principal, vote_fields, f"cli-{secrets.token_hex(16)}")
        return self.site.store.votes.cast(new.model_copy(update={"origin": "cli"})).vote_id

    def say(self, text: str) -> None:
        echo(text, file=self.out)


def vote(
    annotator: Annotated[
        str,
        typer.Option(help="Your e-mail address, as given to `rlhf users add`.", show_default=False),
    ],
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            min=1,
            help="Stop after this many votes; default: when no card is left.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="At the end write all votes of the project to this file, such as votes.jsonl, in "
            "the preference format."
        ),
    ] = None,
) -> None:
    """Vote on comparisons in the terminal, or by lines from a pipe, under the rules of the web
    page. `?` shows the keys.
    """
    workspace = Workspace.open_current()
    user = find_voter(workspace, annotator)
    workspace.store.rules.draw_seed()
    if sys.stdin.isatty():
        echo(KEYS)
    session = VotingSession(
        Site(workspace.settings, workspace.store),
        _build_principal(user),
        iter(sys.stdin.readline, ""),
        sys.stdout,
    )
    try:
        cast = session.run(n)
    except KeyboardInterrupt:
        cast = len(session.cast)
    echo(f"{cast} votes of {user.email}")
    if export is not None:
        from rlhf_pipeline.cli.exports import write_votes

        write_votes(workspace, export)


def find_voter(workspace: Workspace, email: str) -> User:
    """The user with this address. Raises ConfigurationError where they may not vote."""
    user = workspace.store.users.with_email(email)
    if user is None or user.disabled_at is not None:
        raise ConfigurationError(
            f"No active user has the e-mail address {email!r}. Add one: rlhf users add {email} "
            "--role annotator."
        )
    if Permission.VOTES_CAST not in permissions_of(user.roles):
        raise ConfigurationError(
            f"No role of {user.email} may vote. An admin gives one on the page Users: annotator."
        )
    return user


def _build_principal(user: User) -> Principal:
    """The user without a token: access to the home is enough, within the user's permissions."""
    now = utc_now()
    token = Token(
        token_id="rlhf vote",
        user_id=user.user_id,
        kind="api",
        name=None,
        scopes=None,
        created_at=now,
        expires_at=now,
        last_used_at=None,
        revoked_at=None,
    )
    return Principal(user, token, permissions_of(user.roles))
