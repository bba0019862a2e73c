"""Features that are not supported yet: a clear refusal. A feature that is supported must not fail
in another way."""

import cassandra
import pytest
from cassandra.protocol import ConfigurationException, SyntaxException

CLEAR = (cassandra.InvalidRequest, SyntaxException, ConfigurationException, cassandra.Unauthorized)


@pytest.fixture(scope="module")
def t(db):
    return db.table("pk int, ck int, v int, s int STATIC, PRIMARY KEY (pk, ck)")


@pytest.mark.scylla
@pytest.mark.parametrize("text", [
    "CREATE INDEX ON {t} (v)", "CREATE MATERIALIZED VIEW mv AS SELECT * FROM {t} WHERE v IS NOT "
        "NULL AND pk IS NOT NULL AND ck IS NOT NULL PRIMARY KEY (v, pk, ck)",
    "INSERT INTO {t} (pk, ck) VALUES (1, 1) IF NOT EXISTS",
    "UPDATE {t} SET v = 2 WHERE pk = 1 AND ck = 1 IF v = 1",
    "UPDATE {t} SET v = 2 WHERE pk = 1 AND ck = 1 IF EXISTS",
    "DELETE FROM {t} WHERE pk = 1 AND ck = 1 IF EXISTS",
    "BEGIN BATCH INSERT INTO {t} (pk, ck) VALUES (1, 1) IF NOT EXISTS APPLY BATCH",
    "SELECT JSON * FROM {t}", "SELECT * FROM {t} GROUP BY pk",
    "SELECT pk, count(*) FROM {t} GROUP BY pk",
    "SELECT max(v) FROM {t}", "SELECT min(v), avg(v), sum(v) FROM {t}",
    "SELECT * FROM {t} WHERE v = 1 ALLOW FILTERING", "SELECT CAST(v AS text) FROM {t}",
    "CREATE TABLE counters (pk int PRIMARY KEY, c counter)",
    "CREATE TABLE vectors (pk int PRIMARY KEY, v vector<float, 3>)",
    "CREATE ROLE r WITH LOGIN = true", "CREATE USER u", "LIST ROLES",
    "GRANT SELECT ON ALL KEYSPACES TO r", "DROP ROLE r", "LIST ALL PERMISSIONS",
    "CREATE FUNCTION f(a int) RETURNS NULL ON NULL INPUT RETURNS int LANGUAGE lua AS 'return a'",
    "CREATE AGGREGATE a(int) SFUNC f STYPE int",
    "CREATE TRIGGER x ON {t} USING 'y'", "CREATE SERVICE LEVEL sl", "LIST ALL SERVICE LEVELS",
    "PRUNE MATERIALIZED VIEW mv",
    "DROP INDEX i", "DROP MATERIALIZED VIEW mv", "DROP FUNCTION f", "DROP AGGREGATE a",
    "ALTER MATERIALIZED VIEW mv WITH comment = 'x'",
    "SELECT * FROM MUTATION_FRAGMENTS({t})", "SELECT * FROM {t} WHERE v LIKE 'a%' ALLOW FILTERING",
    "CREATE TABLE c (pk int PRIMARY KEY) WITH COMPACT STORAGE",
    "SELECT toJson(v) FROM {t}", "ALTER TABLE {t} WITH cdc = {{'enabled': true}}",
])
def test_works_or_says_so(db, t, text):
    try:
        db.execute(text.format(t=t))
    except CLEAR as error:
        assert len(str(error)) > 40
    assert db.one("SELECT key FROM system.local WHERE key = 'local'") == "local"


def test_allow_filtering_is_syntax(db, t):
    """Drivers and tools append it to any statement."""
    assert db.rows(f"SELECT * FROM {t} ALLOW FILTERING") == []
    assert db.rows(f"SELECT * FROM {t} WHERE pk = 1 LIMIT 5 ALLOW FILTERING") == []
    assert db.rows(f"SELECT * FROM {t} WHERE token(pk) > 5 ALLOW FILTERING") == []
