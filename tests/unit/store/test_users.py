"""Users: added, given roles, disabled, never removed; each change an act in the chain."""

from datetime import timedelta

import pytest

from rlhf_pipeline.core.errors import ConfigurationError, NotFound
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.store import Store


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
    links = "".join(link.model_dump_json() for link in store.audit.after(0, limit=10))
    assert "ann@" not in links
    assert "Ann" not in links


@pytest.mark.parametrize(
    "email", ["", "ann", "@host", "ann@", "a b@host", "a@b@c", "x" * 250 + "@host"]
)
def test_invalid_email_is_refused(store, email):
    with pytest.raises(ConfigurationError, match="Invalid e-mail address"):
        store.users.add(email=email, name="x", actor="test")
    assert store.users.count() == 0


def test_address_is_normalised_when_added_and_looked_up(store):
    ann = store.users.add(email="ＡＮＮ＠example.org", name="Ann", actor="test")
    zoe = store.users.add(email="zoe\u0308@example.org", name="Zoë", actor="test")
    assert (ann.email, zoe.email) == ("ann@example.org", "zo\u00eb@example.org")
    assert store.users.with_email("Ａnn@example.org") == ann
    assert store.users.with_email("ZOE\u0308@example.org") == zoe
    with pytest.raises(ConfigurationError, match="already"):
        store.users.add(email="ａnn@example.org", name="Ann", actor="test")


def test_email_is_unique(store):
    store.users.add(email="ann@example.org", name="Ann", actor="test")
    with pytest.raises(ConfigurationError, match="already"):
        store.users.add(email="ANN@example.org", name="Ann", actor="test")
    assert store.users.count() == 1


def test_roles_are_given_and_taken(store):
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    ann = store.users.add(email="ann@example.org", name="Ann", roles=[Role.ANNOTATOR], actor="test")
    changed = store.users.change(ann.user_id, roles=[Role.AUDITOR, Role.ADMIN], actor="root")
    assert changed.roles == (Role.ADMIN, Role.AUDITOR)
    assert store.users.change(ann.user_id, roles=[], actor="root").roles == ()
    assert actions(store)[-5:] == [
        "roles.revoke",
        "roles.grant",
        "roles.grant",
        "roles.revoke",
        "roles.revoke",
    ]
    assert [user.email for user in store.users.all()] == ["ann@example.org", "root@example.org"]


def test_the_last_admin_is_neither_disabled_nor_demoted(store):
    user = store.users.add(email="one@example.org", name="One", roles=[Role.ADMIN], actor="test")
    two = store.users.add(email="two@example.org", name="Two", roles=[Role.ADMIN], actor="test")
    store.users.change(two.user_id, disabled=True, actor="test")
    for change in (
        lambda: store.users.change(user.user_id, disabled=True, actor="test"),
        lambda: store.users.change(user.user_id, roles=[], actor="test"),
    ):
        with pytest.raises(ConfigurationError, match="last admin"):
            change()
    store.users.change(two.user_id, disabled=False, actor="test")
    assert store.users.change(user.user_id, roles=[], actor="test").roles == ()


def test_disabling_a_user_revokes_tokens_for_good(store):
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    ann = store.users.add(email="ann@example.org", name="Ann", actor="test")
    secret, _ = store.tokens.issue(
        ann.user_id, kind="api", lifetime=timedelta(days=1), actor="test"
    )
    assert store.users.change(ann.user_id, disabled=True, actor="root").disabled_at is not None
    assert store.tokens.find(secret) is None
    assert store.users.change(ann.user_id, disabled=False, actor="root").disabled_at is None
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


def test_user_change_is_atomic(store):
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    ann = store.users.add(email="ann@example.org", name="Ann", roles=[Role.ANNOTATOR], actor="test")
    root = store.users.with_email("root@example.org")
    n_acts = len(actions(store))
    with pytest.raises(ConfigurationError, match="last admin"):
        store.users.change(root.user_id, name="Nobody", roles=[], actor="test")

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
