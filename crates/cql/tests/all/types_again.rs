//! User types that are dropped and created again with the same name: values of the old type never
//! get the fields of the new one, and never affect other columns.

use crate::support::CLUSTER;
use crate::support::{Session, values, with_node, with_restart};
use cql::api::{Batch, BatchKind, BatchStatement, BoundValues};
use cql::{Error, Prepared, QueryParams, StatementResult};
use model::CqlType;
use model::types::Value;

/// Types of a column that contain the user type `ud`, each with a value.
const FORMS: [(&str, &str); 8] = [
    ("frozen<ud>", "{x: 5, y: 'abcd'}"),
    ("ud", "{x: 5, y: 'abcd'}"),
    ("list<frozen<ud>>", "[{x: 5, y: 'abcd'}]"),
    ("frozen<list<frozen<ud>>>", "[{x: 5, y: 'abcd'}]"),
    ("set<frozen<ud>>", "{{x: 5, y: 'abcd'}}"),
    ("map<frozen<ud>, int>", "{{x: 5, y: 'abcd'}: 1}"),
    ("tuple<int, frozen<ud>>", "(1, {x: 5, y: 'abcd'})"),
    ("frozen<outer_ud>", "{inner: {x: 5, y: 'abcd'}}"),
];

async fn flush(table: &str) {
    let metadata = CLUSTER.metadata.get().current();
    let id = metadata.table("ks", table).expect("it was made").schema.id;
    cluster::flush::flush(CLUSTER.engine, id).await.unwrap_or_else(|error| panic!("{table}: {error}"));
}

async fn refused(session: &Session, statement: &str) -> String {
    session.query(statement).await.expect_err(statement).to_string()
}

/// Drops `ud` and the types that contain it.
async fn drop_types(session: &Session) {
    session.ok("DROP TYPE outer_ud").await;
    session.ok("DROP TYPE ud").await;
}

/// Creates `ud` with these fields, and the types that contain it.
async fn make_types(session: &Session, fields: &str) {
    session.ok(&format!("CREATE TYPE ud ({fields})")).await;
    session.ok("CREATE TYPE outer_ud (inner frozen<ud>)").await;
}

/// A table for each form, with a row in an sstable. The column was dropped since.
async fn tables_with_a_dropped_column(session: &Session) {
    session.use_keyspace("ks").await;
    make_types(session, "x int, y text").await;
    for (n, (ty, value)) in FORMS.iter().enumerate() {
        session.ok(&format!("CREATE TABLE t{n} (p int PRIMARY KEY, v text, a {ty})")).await;
        session.ok(&format!("INSERT INTO t{n} (p, v, a) VALUES (1, 'precious', {value})")).await;
        flush(&format!("t{n}")).await;
        session.ok(&format!("ALTER TABLE t{n} DROP a")).await;
    }
}

#[test]
fn a_dropped_column_keeps_the_type_that_it_had() {
    let first = |session: Session| async move {
        tables_with_a_dropped_column(&session).await;
        drop_types(&session).await;
        make_types(&session, "y text, x int").await;
        for (n, (ty, _)) in FORMS.iter().enumerate() {
            let why = refused(&session, &format!("ALTER TABLE t{n} ADD a {ty}")).await;
            assert!(
                why.contains("re-add previously dropped column 'a'") || why.contains("Cannot add a collection"),
                "{why}"
            );
            session.ok(&format!("INSERT INTO t{n} (p, v) VALUES (2, 'more')")).await;
            flush(&format!("t{n}")).await;
        }
    };
    with_restart("again-kept", first, |session, ()| async move {
        for (n, (ty, _)) in FORMS.iter().enumerate() {
            let rows = session.rows(&format!("SELECT * FROM ks.t{n}")).await;
            assert_eq!(rows, ["p=1, v='precious'", "p=2, v='more'"], "{ty}");
            refused(&session, &format!("ALTER TABLE ks.t{n} ADD a {ty}")).await;
        }
        // ALTER TYPE could have produced the same fields with more behind them.
        session.ok("USE ks").await;
        drop_types(&session).await;
        make_types(&session, "x int, y text, z int").await;
        for (n, (ty, value)) in FORMS.iter().enumerate() {
            session.ok(&format!("ALTER TABLE t{n} ADD a {ty}")).await;
            assert_eq!(session.rows(&format!("SELECT a FROM t{n} WHERE p = 1")).await, ["a=null"], "{ty}");
            session.ok(&format!("INSERT INTO t{n} (p, v, a) VALUES (3, 'again', {value})")).await;
            flush(&format!("t{n}")).await;
            assert_eq!(session.rows(&format!("SELECT p, v FROM t{n}")).await.len(), 3, "{ty}");
        }
    });
}

#[test]
fn a_type_that_was_altered_since_the_drop_is_the_same_type() {
    with_node("again-altered", |session| async move {
        tables_with_a_dropped_column(&session).await;
        session.ok("ALTER TYPE ud ADD z int").await;
        session.ok("ALTER TYPE ud RENAME x TO first").await;
        for (n, (ty, _)) in FORMS.iter().enumerate() {
            session.ok(&format!("ALTER TABLE t{n} ADD a {ty}")).await;
            assert_eq!(session.rows(&format!("SELECT * FROM t{n}")).await, ["p=1, a=null, v='precious'"], "{ty}");
        }
    });
}

#[test]
fn fields_that_changed_places_are_another_type() {
    with_node("again-swapped", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TYPE u (x int, y int)").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, a frozen<u>)").await;
        session.ok("INSERT INTO t (p, a) VALUES (1, {x: 1, y: 2})").await;
        // The value is newer than the drop.
        session.ok("ALTER TABLE t DROP a USING TIMESTAMP 1").await;
        session.ok("DROP TYPE u").await;
        session.ok("CREATE TYPE u (y int, x int)").await;
        let why = refused(&session, "ALTER TABLE t ADD a frozen<u>").await;
        assert_eq!(
            why,
            "Cannot re-add previously dropped column 'a' of type frozen<u>, incompatible with previous type frozen<u>: the user \
             types in it had other fields then: u (x int, y int)"
        );
        session.ok("DROP TYPE u").await;
        session.ok("CREATE TYPE u (x int, y int)").await;
        session.ok("ALTER TABLE t ADD a frozen<u>").await;
        assert_eq!(session.rows("SELECT a FROM t").await, ["a={x: 1, y: 2}"]);
    });
}

#[test]
fn dropped_columns_are_shown_without_user_types() {
    with_node("again-shown", |session| async move {
        tables_with_a_dropped_column(&session).await;
        drop_types(&session).await;
        let mut shown = Vec::new();
        for n in 0..FORMS.len() {
            let one = format!(
                "SELECT type FROM system_schema.dropped_columns WHERE keyspace_name = 'ks' AND table_name = 't{n}'"
            );
            shown.extend(session.rows(&one).await);
        }
        let ud = "frozen<tuple<int, text>>";
        let expected = [
            ud.to_owned(),
            ud.to_owned(),
            format!("list<{ud}>"),
            format!("frozen<list<{ud}>>"),
            format!("set<{ud}>"),
            format!("map<{ud}, int>"),
            format!("frozen<tuple<int, {ud}>>"),
            format!("frozen<tuple<{ud}>>"),
        ];
        assert_eq!(shown, expected.map(|ty| format!("type='{ty}'")));
        // A table can be created again from its description although the type was dropped.
        let metadata = CLUSTER.metadata.get().current();
        let schema = metadata.table("ks", "t2").expect("it is there").schema.clone();
        let described = cql::describe::snapshot_schema(CLUSTER.metadata, &schema);
        session.ok("DROP TABLE t2").await;
        for statement in described.split_inclusive(';').filter(|statement| !statement.trim().is_empty()) {
            session.ok(statement).await;
        }
        assert!(session.rows("SELECT * FROM t2").await.is_empty());
    });
}

const INSERT: &str = "INSERT INTO t (p, a) VALUES (?, ?)";

async fn prepare(session: &Session) -> Prepared {
    session.processor.prepare(&session.client, INSERT, None).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A value of a user type of an int and a text.
fn old() -> BoundValues {
    let ty = CqlType::tuple([CqlType::Int, CqlType::Text]);
    let value = Value::Tuple(vec![Value::Int(5), Value::Text("abcd".into())]);
    values(&[(&CqlType::Int, Value::Int(1)), (&ty, value)])
}

async fn execute(session: &Session, prepared: &Prepared) -> Result<StatementResult, Error> {
    let params = QueryParams { values: old(), ..QueryParams::default() };
    session.processor.execute(&session.client, &prepared.id, &params).await
}

async fn batch(session: &Session, prepared: &Prepared) -> Result<StatementResult, Error> {
    let statements = vec![BatchStatement::Prepared(prepared.id, old())];
    let batch = Batch { kind: BatchKind::Unlogged, statements, params: QueryParams::default() };
    session.processor.batch(&session.client, &batch).await
}

#[test]
fn values_bound_for_a_type_never_reach_a_later_type_of_its_name() {
    with_node("again-bound", |session| async move {
        let other = session.another();
        session.use_keyspace("ks").await;
        other.ok("USE ks").await;
        let create = "CREATE TABLE t (p int PRIMARY KEY, a frozen<u>) WITH id = 5b9d4c1e-0000-1000-8000-000000000001";
        session.ok("CREATE TYPE u (x int, y text)").await;
        session.ok(create).await;
        let before = prepare(&session).await;
        execute(&session, &before).await.unwrap();
        session.ok("ALTER TYPE u ADD z int").await;
        assert_eq!(execute(&session, &before).await.unwrap_err(), Error::Unprepared(before.id));
        assert_eq!(prepare(&session).await.id, before.id, "ALTER TYPE changes no id");
        execute(&session, &before).await.unwrap();
        for step in ["DROP TABLE t", "DROP TYPE u", "CREATE TYPE u (y text, x int)", create] {
            session.ok(step).await;
        }
        check_is_another(&[&session, &other], &before).await;
        assert!(session.rows("SELECT * FROM t").await.is_empty());
    });
}

/// Checks that a client that prepares the statement now gets another id. Otherwise a driver would
/// send the old values again.
async fn check_is_another(sessions: &[&Session], before: &Prepared) {
    for session in sessions {
        for _ in 0..2 {
            assert_eq!(execute(session, before).await.unwrap_err(), Error::Unprepared(before.id));
            assert_ne!(prepare(session).await.id, before.id);
        }
        assert!(batch(session, before).await.is_err());
    }
}

#[test]
fn a_column_added_again_with_a_later_type_has_other_statements() {
    for (name, fields) in [("again-more", "x int, y text, z int"), ("again-renamed", "a int, b text")] {
        with_node(name, |session| async move {
            session.use_keyspace("ks").await;
            session.ok("CREATE TYPE u (x int, y text)").await;
            session.ok("CREATE TABLE t (p int PRIMARY KEY, a frozen<u>)").await;
            let before = prepare(&session).await;
            execute(&session, &before).await.unwrap();
            session.ok("ALTER TABLE t DROP a").await;
            session.ok("DROP TYPE u").await;
            session.ok(&format!("CREATE TYPE u ({fields})")).await;
            session.ok("ALTER TABLE t ADD a frozen<u>").await;
            check_is_another(&[&session], &before).await;
            assert_eq!(session.rows("SELECT a FROM t").await, ["a=null"]);
        });
    }
}
