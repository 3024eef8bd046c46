"""Users: added, given roles, disabled, never removed; each change an act in the chain."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta

import pytest
from sqlalchemy import event

from rlhf_pipeline.errors import ConfigurationError, LoginEnded, NotFound
from rlhf_pipeline.records import Role, User
from rlhf_pipeline.store import Store
from tests.unit.store.databases import on_postgres


def actions(store: Store) -> list[str]:
    return [link.action for link in store.audit.after(0, limit=100)]


def test_a_user_is_found_by_id_and_by_address_in_any_case(store):
    ann = store.users.add(
        email=" Ann@Example.org ", name="Ann", roles=[Role.CURATOR, Role.ANNOTATOR], actor="test"
    )
    assert (ann.email, ann.roles, ann.has_password, ann.disabled_at) == (
        "ann@example.org",
        (Role.ANNOTATOR, Role.CURATOR),
        False,
        None,
    )
    assert store.users.get(ann.user_id) == ann == store.users.with_email("ANN@example.org")
    assert store.users.with_email("bob@example.org") is None
    with pytest.raises(NotFound, match="no user 'nope'"):
        store.users.get("nope")


def test_the_id_is_a_pseudonym_and_the_chain_holds_no_name(store):
    ann = store.users.add(email="ann@example.org", name="Ann", actor="test")
    assert "ann" not in ann.user_id
    told = "".join(link.model_dump_json() for link in store.audit.after(0, limit=10))
    assert "ann@" not in told
    assert "Ann" not in told


@pytest.mark.parametrize(
    "email", ["", "ann", "@host", "ann@", "a b@host", "a@b@c", "x" * 250 + "@host"]
)
def test_what_is_no_address_is_refused(store, email):
    with pytest.raises(ConfigurationError, match="Invalid e-mail address"):
        store.users.add(email=email, name="x", actor="test")
    assert store.users.count() == 0


@pytest.mark.parametrize(
    ("character", "name"),
    [
        ("\u200b", "ZERO WIDTH SPACE"),
        ("\u00ad", "SOFT HYPHEN"),
        ("\u202e", "RIGHT-TO-LEFT OVERRIDE"),
        ("\ufeff", "ZERO WIDTH NO-BREAK SPACE"),
        ("\u2060", "WORD JOINER"),
        ("\u3164", "HANGUL JUNGSEONG FILLER"),
        ("\ufe0f", "VARIATION SELECTOR-16"),
        ("\x1b", "control character"),
    ],
)
def test_address_with_an_invisible_character_is_refused(store, character, name):
    with pytest.raises(
        ConfigurationError, match=rf"invisible character U\+[0-9A-F]{{4}} \({name}\)"
    ) as refused:
        store.users.add(email=f"an{character}n@example.org", name="x", actor="test")
    assert character not in str(refused.value)
    assert store.users.count() == 0


def test_address_is_normalised_when_added_and_looked_up(store):
    ann = store.users.add(email="ＡＮＮ＠example.org", name="Ann", actor="test")
    zoe = store.users.add(email="zoe\u0308@example.org", name="Zoë", actor="test")
    assert (ann.email, zoe.email) == ("ann@example.org", "zo\u00eb@example.org")
    assert store.users.with_email("Ａnn@example.org") == ann
    assert store.users.with_email("ZOE\u0308@example.org") == zoe
    with pytest.raises(ConfigurationError, match="already"):
        store.users.add(email="ａnn@example.org", name="Ann", actor="test")


def test_an_address_is_taken_once_in_a_project(store):
    store.users.add(email="ann@example.org", name="Ann", actor="test")
    with pytest.raises(ConfigurationError, match="already"):
        store.users.add(email="ANN@example.org", name="Ann", actor="test")
    with Store.open(
        store.database.url.render_as_string(hide_password=False),
        organization="org",
        project="other",
    ) as other:
        other.users.add(email="ann@example.org", name="Ann", actor="test")
        assert other.users.count() == store.users.count() == 1


def test_roles_are_given_and_taken(store):
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    ann = store.users.add(email="ann@example.org", name="Ann", roles=[Role.ANNOTATOR], actor="test")
    assert store.users.set_roles(ann.user_id, [Role.AUDITOR, Role.ADMIN], actor="root").roles == (
        Role.ADMIN,
        Role.AUDITOR,
    )
    assert store.users.set_roles(ann.user_id, [], actor="root").roles == ()
    assert actions(store)[-5:] == [
        "roles.revoke",
        "roles.grant",
        "roles.grant",
        "roles.revoke",
        "roles.revoke",
    ]
    assert [user.email for user in store.users.all()] == ["ann@example.org", "root@example.org"]


def test_the_last_admin_is_neither_disabled_nor_demoted(store):
    one = store.users.add(email="one@example.org", name="One", roles=[Role.ADMIN], actor="test")
    two = store.users.add(email="two@example.org", name="Two", roles=[Role.ADMIN], actor="test")
    store.users.disable(two.user_id, actor="test")
    for change in (
        lambda: store.users.disable(one.user_id, actor="test"),
        lambda: store.users.set_roles(one.user_id, [], actor="test"),
    ):
        with pytest.raises(ConfigurationError, match="last admin"):
            change()
    store.users.enable(two.user_id, actor="test")
    assert store.users.set_roles(one.user_id, [], actor="test").roles == ()


def test_who_is_disabled_has_no_token_that_holds_and_who_comes_back_gets_none_back(store):
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    ann = store.users.add(email="ann@example.org", name="Ann", actor="test")
    secret, _ = store.tokens.issue(
        ann.user_id, kind="api", lifetime=timedelta(days=1), actor="test"
    )
    assert store.users.disable(ann.user_id, actor="root").disabled_at is not None
    assert store.tokens.find(secret) is None
    assert store.users.enable(ann.user_id, actor="root").disabled_at is None
    assert store.tokens.find(secret) is None


def test_a_new_password_ends_sessions_and_leaves_tokens(store):
    ann = store.users.add(email="ann@example.org", name="Ann", actor="test")
    lasting = timedelta(days=1)
    session, _ = store.tokens.issue(ann.user_id, kind="session", lifetime=lasting, actor="test")
    api, _ = store.tokens.issue(ann.user_id, kind="api", lifetime=lasting, actor="test")
    store.users.set_password(ann.user_id, "hash", actor=ann.user_id)
    assert store.users.password_hash(ann.user_id) == "hash"
    assert store.users.get(ann.user_id).has_password
    assert store.tokens.find(session) is None
    assert store.tokens.find(api) is not None


def test_a_password_that_ended_meanwhile_is_not_hashed_anew_and_lets_nobody_in(store):
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    ann = store.users.add(
        email="ann@example.org", name="Ann", password_hash="old", actor="test"
    ).user_id
    lasting = {"kind": "session", "lifetime": timedelta(days=1), "actor": "test"}
    store.users.set_password(ann, "new", actor=ann, instead_of="old")
    for refused in (
        lambda: store.users.set_password(ann, "newer", actor=ann, instead_of="old"),
        lambda: store.tokens.issue(ann, **lasting, password_hash="old"),
    ):
        with pytest.raises(LoginEnded, match="nothing was done"):
            refused()
    assert store.users.password_hash(ann) == "new"
    store.tokens.issue(ann, **lasting, password_hash="new")
    store.users.disable(ann, actor="test")
    with pytest.raises(LoginEnded):
        store.tokens.issue(ann, **lasting, password_hash="new")


def test_a_change_is_made_whole_or_not_at_all_and_of_what_was_read(store):
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    ann = store.users.add(email="ann@example.org", name="Ann", roles=[Role.ANNOTATOR], actor="test")
    root = store.users.with_email("root@example.org")
    n_acts = len(actions(store))
    with pytest.raises(ConfigurationError, match="last admin"):
        store.users.change(root.user_id, name="Nobody", roles=[], actor="test")

    def refuse(user):
        assert user == ann
        raise ConfigurationError("not what was read")

    with pytest.raises(ConfigurationError, match="not what was read"):
        store.users.change(ann.user_id, name="Other", disabled=True, actor="test", check=refuse)
    assert (store.users.get(root.user_id), store.users.get(ann.user_id), len(actions(store))) == (
        root,
        ann,
        n_acts,
    )
    changed = store.users.change(
        ann.user_id, name=" Anna ", roles=[Role.CURATOR], disabled=True, actor="test"
    )
    assert (changed.name, changed.roles, changed.disabled_at is None) == (
        "Anna",
        (Role.CURATOR,),
        False,
    )
    assert actions(store)[n_acts:] == [
        "users.rename",
        "roles.revoke",
        "roles.grant",
        "users.disable",
    ]
    assert (
        store.users.change(
            ann.user_id, name="Anna", roles=[Role.CURATOR], disabled=True, actor="test"
        )
        == changed
    )
    assert len(actions(store)) == n_acts + 4  # what is so already is no act


def test_a_change_of_nobody_is_refused(store):
    for change in (
        lambda: store.users.rename("nope", "x", actor="test"),
        lambda: store.users.set_roles("nope", [Role.ADMIN], actor="test"),
        lambda: store.users.set_password("nope", "x", actor="test"),
        lambda: store.users.enable("nope", actor="test"),
        lambda: store.users.disable("nope", actor="test"),
    ):
        with pytest.raises(NotFound):
            change()
    assert actions(store) == []


def test_a_name_stays_one(store):
    ann = store.users.add(email="ann@example.org", name="  ", actor="test")
    assert ann.name == "ann@example.org"
    assert store.users.rename(ann.user_id, " Ann ", actor="test").name == "Ann"
    with pytest.raises(ConfigurationError, match="name"):
        store.users.rename(ann.user_id, "  ", actor="test")


# --- of the organisation
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def other(store):
    """Another project of the same organisation, in the same database."""
    url = store.database.url.render_as_string(hide_password=False)
    with Store.open(url, organization="org", project="other", clock=store.database.clock) as opened:
        yield opened


def stranger(store: Store) -> Store:
    return Store.open(
        store.database.url.render_as_string(hide_password=False),
        organization="elsewhere",
        project="demo",
    )


def test_a_role_of_the_organisation_holds_in_every_project_of_it_and_in_no_other(store, other):
    boss = store.users.add(
        email="boss@example.org",
        name="Boss",
        roles=[Role.CURATOR],
        organization_roles=[Role.AUDITOR],
        actor="test",
    )
    assert (boss.roles, boss.organization_roles, boss.in_every_project) == (
        (Role.CURATOR,),
        (Role.AUDITOR,),
        True,
    )
    assert boss.all_roles == (Role.AUDITOR, Role.CURATOR)
    there = other.users.get(boss.user_id)
    assert (there.roles, there.all_roles, there.email) == ((), (Role.AUDITOR,), "boss@example.org")
    assert other.users.with_email("boss@example.org") == there
    assert [user.user_id for user in other.users.all()] == [boss.user_id]
    assert (store.users.count(), other.users.count()) == (1, 1)
    with stranger(store) as elsewhere:
        assert elsewhere.users.all() == []
        with pytest.raises(NotFound):
            elsewhere.users.get(boss.user_id)
    assert other.users.set_roles(boss.user_id, [Role.ENGINEER], actor="test").all_roles == (
        Role.AUDITOR,
        Role.ENGINEER,
    )
    assert store.users.get(boss.user_id) == boss  # a role in one project is none in another
    assert other.users.set_organization_roles(boss.user_id, [], actor="test").all_roles == (
        Role.ENGINEER,
    )
    assert store.users.get(boss.user_id).all_roles == (Role.CURATOR,)
    assert [user.all_roles for user in store.users.all()] == [(Role.CURATOR,)]
    assert [action for action in actions(store) if action.startswith(("roles", "users"))] == [
        "users.add", "roles.grant.organization", "roles.grant",
    ]  # fmt: skip
    assert actions(other) == ["roles.grant", "roles.revoke.organization"]
    assert (store.audit.verify(), other.audit.verify()) == (3, 2)


def test_whoever_gets_into_the_organisation_comes_without_what_a_project_gave_them(store, other):
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    ann = store.users.add(
        email="ann@example.org",
        name="Ann",
        roles=[Role.ANNOTATOR],
        password_hash="known to the admin",
        actor="test",
    )
    old = [
        store.tokens.issue(ann.user_id, kind=kind, lifetime=timedelta(days=1), actor="test")[0]
        for kind in ("api", "session", "login")
    ]
    raised = store.users.set_organization_roles(ann.user_id, [Role.ADMIN], actor="test")
    assert (raised.user_id, raised.roles, raised.has_password) == (
        ann.user_id,
        (Role.ANNOTATOR,),
        False,
    )
    assert [store.tokens.find(secret) for secret in old] == [None] * 3
    assert store.tokens.redeem(old[2]) is None
    assert other.users.with_email("ann@example.org").all_roles == (Role.ADMIN,)
    other.users.set_password(ann.user_id, "her own", actor=ann.user_id)
    assert (
        store.users.password_hash(ann.user_id)
        == other.users.password_hash(ann.user_id)
        == "her own"
    )
    assert (
        store.users.rename(ann.user_id, "Anna", actor="test").name
        == other.users.get(ann.user_id).name
        == "Anna"
    )


def test_a_token_of_the_organisation_holds_in_every_project_until_its_owner_is_disabled(
    store, other
):
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    boss = store.users.add(
        email="boss@example.org",
        name="Boss",
        roles=[Role.CURATOR],
        organization_roles=[Role.AUDITOR],
        actor="test",
    )
    secret, token = store.tokens.issue(
        boss.user_id, kind="api", lifetime=timedelta(days=1), actor="test"
    )
    assert store.tokens.find(secret).user_id == other.tokens.find(secret).user_id == boss.user_id
    assert [one.token_id for one in other.tokens.of_user(boss.user_id)] == [token.token_id]
    with stranger(store) as elsewhere:
        assert elsewhere.tokens.find(secret) is None
    other.users.disable(boss.user_id, actor="test")
    assert store.users.get(boss.user_id).disabled_at is not None
    assert (store.tokens.find(secret), other.tokens.find(secret)) == (None, None)


def test_who_was_disabled_in_one_project_and_enabled_in_another_gets_in_by_a_link_in_both(
    store, other
):
    """The row that stands in for an account where it has roles was left disabled, and no login link
    held there ever again.
    """
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    boss = store.users.add(
        email="boss@example.org", name="Boss", organization_roles=[Role.AUDITOR], actor="test"
    ).user_id
    other.users.set_roles(boss, [Role.CURATOR], actor="test")
    other.users.disable(boss, actor="test")
    store.users.rename(boss, "Bea", actor="test")
    store.users.enable(boss, actor="test")
    for project in (store, other):
        secret, _ = project.tokens.issue(
            boss, kind="login", lifetime=timedelta(days=1), actor="test"
        )
        assert project.tokens.redeem(secret) is not None
    with store.database.read_transaction() as connection:
        rows = connection.exec_driver_sql(
            "SELECT name, disabled_at FROM users WHERE email = 'boss@example.org'"
        ).all()
    assert [tuple(row) for row in rows] == [("Bea", None)] * 2
    with store.database.write_transaction() as connection:  # as a store may have it from before
        connection.exec_driver_sql(
            "UPDATE users SET disabled_at = created_at WHERE project_id = 'other'"
        )
    secret, _ = other.tokens.issue(boss, kind="login", lifetime=timedelta(days=1), actor="test")
    assert other.tokens.redeem(secret) is not None


@on_postgres
@pytest.mark.parametrize("act", ["change", "password", "roles of the organisation"])
def test_nobody_changes_an_account_of_the_organisation_from_another_project_meanwhile(
    store, other, act
):
    boss = store.users.add(
        email="boss@example.org", name="Boss", organization_roles=[Role.AUDITOR], actor="test"
    ).user_id
    is_done = threading.Event()

    def elsewhere() -> None:
        if act == "password":
            other.users.set_password(boss, "hash", actor="test")
        elif act == "change":
            other.users.change(boss, name="Bea", actor="test")
        else:
            other.users.set_organization_roles(boss, [Role.AUDITOR, Role.ENGINEER], actor="test")
        is_done.set()

    with ThreadPoolExecutor(1) as pool:

        def check(user: User) -> None:
            started.append(pool.submit(elsewhere))
            assert not is_done.wait(1), (
                "changed by somebody else after it was read, before it was written"
            )

        started: list[Future[None]] = []
        roles = [Role.AUDITOR, Role.ENGINEER]
        store.users.change(boss, organization_roles=roles, disabled=True, actor="test", check=check)
        started[0].result(10)
    found = store.users.get(boss)
    assert (found.organization_roles, found.disabled_at is not None) == (
        (Role.AUDITOR, Role.ENGINEER),
        True,
    )
    assert (found.name, found.has_password) == (
        "Bea" if act == "change" else "Boss",
        act == "password",
    )


@on_postgres
@pytest.mark.parametrize("act", ["password", "disabled", "revoked"])
def test_what_ends_in_another_project_meanwhile_lets_nobody_in(store, other, act):
    """A login under way was checked, then its password, account or token ended in another project,
    then its session was made.
    """
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    boss = store.users.add(
        email="boss@example.org",
        name="Boss",
        organization_roles=[Role.AUDITOR],
        password_hash="old",
        actor="test",
    ).user_id
    link, _ = store.tokens.issue(boss, kind="login", lifetime=timedelta(days=1), actor="test")
    _, asking = store.tokens.issue(boss, kind="session", lifetime=timedelta(days=1), actor="test")
    lasts = {"lifetime": timedelta(days=1), "actor": "test"}
    under_way, ending, last_look = {
        "password": (
            lambda: store.tokens.issue(boss, kind="session", password_hash="old", **lasts),
            lambda: other.users.set_password(boss, "new", actor="test"),
            "users.password_hash =",
        ),
        "disabled": (
            lambda: store.tokens.exchange(link, lifetime=timedelta(days=1)),
            lambda: other.users.disable(boss, actor="test"),
            "SELECT users.user_id",
        ),
        "revoked": (
            lambda: store.tokens.issue(boss, kind="api", asked_by=asking.token_id, **lasts),
            lambda: other.tokens.revoke(asking.token_id, actor="test"),
            "tokens.revoked_at IS NULL",
        ),
    }[act]
    is_done, started = threading.Event(), []
    with ThreadPoolExecutor(1) as pool:

        @event.listens_for(store.database.engine, "after_cursor_execute")
        def looked(connection: object, cursor: object, sql: str, *more: object) -> None:
            if last_look in sql and not started:
                started.append(pool.submit(ending))
                started[0].add_done_callback(lambda _: is_done.set())
                assert not is_done.wait(1), (
                    "ended by somebody else after it was looked at, before the session was made"
                )

        secret, _ = under_way()
        assert is_done.wait(10)
    other.users.enable(boss, actor="test")
    assert (store.tokens.find(secret) is None) == (act != "revoked")


@on_postgres
def test_a_login_link_of_the_organisation_is_redeemed_in_one_project_alone(store, other):
    boss = store.users.add(
        email="boss@example.org", name="Boss", organization_roles=[Role.AUDITOR], actor="test"
    ).user_id
    link, _ = store.tokens.issue(boss, kind="login", lifetime=timedelta(days=1), actor="test")
    there: list[Future[object]] = []
    with ThreadPoolExecutor(1) as pool:

        @event.listens_for(store.database.engine, "after_cursor_execute")
        def looked(connection: object, cursor: object, sql: str, *more: object) -> None:
            if "users.disabled_at IS NULL" in sql and not there:
                there.append(pool.submit(other.tokens.redeem, link))
                wait(there, 1)

        assert store.tokens.redeem(link) is not None
        assert there[0].result(10) is None


def test_an_address_is_of_one_account_in_an_organisation_that_knows_it(store, other):
    ann = store.users.add(email="ann@example.org", name="Ann", actor="test")
    other.users.add(email="ann@example.org", name="Another Ann", actor="test")
    with pytest.raises(ConfigurationError, match="account of its own in other"):
        store.users.set_organization_roles(ann.user_id, [Role.AUDITOR], actor="test")
    with pytest.raises(ConfigurationError, match="already"):
        store.users.add(
            email="ann@example.org", name="Ann", organization_roles=[Role.AUDITOR], actor="test"
        )
    other.users.add(
        email="bo@example.org", name="Bo", organization_roles=[Role.AUDITOR], actor="test"
    )
    with pytest.raises(ConfigurationError, match="already"):
        store.users.add(email="bo@example.org", name="Bo", actor="test")
    assert store.users.get(ann.user_id) == ann
    assert store.audit.verify() == 1


def test_an_admin_of_the_organisation_is_one_of_each_project(store, other):
    boss = store.users.add(
        email="boss@example.org", name="Boss", organization_roles=[Role.ADMIN], actor="test"
    )
    one = store.users.add(email="one@example.org", name="One", roles=[Role.ADMIN], actor="test")
    assert store.users.set_roles(one.user_id, [], actor="test").roles == ()
    for change in (
        lambda: other.users.disable(boss.user_id, actor="test"),
        lambda: store.users.set_organization_roles(boss.user_id, [], actor="test"),
    ):
        with pytest.raises(ConfigurationError, match="last admin"):
            change()
    assert store.users.get(boss.user_id) == boss


def test_users_and_tokens_are_read_page_by_page(store, other):
    ids = [
        store.users.add(email=f"u{i:02}@example.org", name="x", actor="test").user_id
        for i in range(7)
    ]
    boss = other.users.add(
        email="u03b@example.org", name="x", organization_roles=[Role.AUDITOR], actor="test"
    )
    store.users.set_roles(boss.user_id, [Role.CURATOR], actor="test")  # two rows, one account
    ids.insert(4, boss.user_id)
    found, after = [], None
    while page := store.users.page(after=after, limit=3):
        found += [user.user_id for user in page]
        after = found[-1]
    assert found == ids == [user.user_id for user in store.users.all()]
    with pytest.raises(NotFound):
        store.users.page(after="nobody", limit=3)

    made = [
        store.tokens.issue(ids[0], kind="api", lifetime=timedelta(days=1), actor="test")[1].token_id
        for _ in range(5)
    ]
    store.tokens.issue(ids[0], kind="session", lifetime=timedelta(days=1), actor="test")
    seen, before = [], None
    while page := store.tokens.of_user(ids[0], kind="api", before=before, limit=2):
        seen += [token.token_id for token in page]
        before = seen[-1]
    assert sorted(seen) == sorted(made)
    assert seen == [token.token_id for token in store.tokens.of_user(ids[0], kind="api")]
    with pytest.raises(NotFound):
        store.tokens.of_user(ids[1], before=made[0])
