//! Limits on types. Everything that DDL accepts can be written, flushed, read, and loaded after a
//! restart.

use crate::support::CLUSTER;
use crate::support::{Session, with_node, with_restart};
use bytes::Bytes;
use cql::api::{BoundValue, BoundValues, QueryParams};
use cql::{Error, ResultKind};
use model::CqlType;
use model::types::collection;
use model::types::limits::{Extent, MAX_TABLE_NODES, MAX_TYPE_DEPTH, MAX_TYPE_NODES};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::time::Duration;

/// A value as deep as its type: the first field of each tuple and user type, and one element of
/// each collection.
fn deep_value(ty: &CqlType) -> Vec<u8> {
    match ty {
        CqlType::List { elem, .. } => collection::build_list([deep_value(elem)]),
        CqlType::Set { elem, .. } => collection::build_set(elem, vec![deep_value(elem)]),
        CqlType::Map { key, value, .. } => collection::build_map(key, vec![(deep_value(key), deep_value(value))]),
        CqlType::Vector { elem, dim } => collection::build_vector(elem, vec![deep_value(elem); *dim as usize]),
        CqlType::Tuple(fields) => collection::build_tuple([Some(deep_value(&fields[0]))]),
        CqlType::Udt(user_type) => collection::build_tuple([Some(deep_value(&user_type.fields[0].1))]),
        CqlType::Text => b"x".to_vec(),
        _ => 7i32.to_be_bytes().to_vec(),
    }
}

/// Fills and flushes a table.
async fn fill(session: &Session, table: &str, columns: &[String]) {
    let text = format!("INSERT INTO {table} ({}) VALUES ({})", columns.join(", "), vec!["?"; columns.len()].join(", "));
    let insert =
        session.processor.prepare(&session.client, &text, None).await.unwrap_or_else(|e| panic!("{text}: {e}"));
    let values = insert.markers.columns.iter().map(|column| BoundValue::Value(deep_value(&column.ty).into()));
    let params = QueryParams { values: BoundValues::Positional(values.collect()), ..QueryParams::default() };
    let done = session.processor.execute(&session.client, &insert.id, &params).await;
    done.unwrap_or_else(|error| panic!("{text}: {error}"));
    let metadata = CLUSTER.metadata.get().current();
    let id = metadata.table("ks", table).expect("it was made").schema.id;
    cluster::flush::flush(CLUSTER.engine, id).await.unwrap_or_else(|error| panic!("{table}: {error}"));
}

/// The bytes of all rows, and the size of the column descriptions for drivers.
async fn contents(session: &Session, table: &str) -> (Bytes, usize) {
    let ResultKind::Rows(rows) = session.ok(&format!("SELECT * FROM ks.{table}")).await.kind else {
        panic!("{table} has no rows")
    };
    assert_eq!(rows.count, 1, "{table}");
    let mut described = Vec::new();
    rows.metadata.columns.iter().for_each(|column| model::types::wire::write_option(&column.ty, &mut described));
    let mut rest = &described[..];
    for _ in &rows.metadata.columns {
        model::types::wire::read_option(&mut rest).expect("drivers can read the description");
    }
    (rows.body, described.len())
}

/// A statement that creates or alters a type or a table. Numbers select among the existing ones.
#[derive(Clone, Debug)]
enum Step {
    CreateType(Vec<(u8, u8)>),
    AddField(u8, (u8, u8)),
    RenameField(u8),
    CreateTable(Vec<(u8, u8)>),
    AddColumn(u8, (u8, u8)),
    /// Drops a column of a user type with the first fields, creates the type again with the second
    /// ones, and adds the column again.
    TypeAgain([Vec<(u8, u8)>; 2], u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ty = || (any::<u8>(), any::<u8>());
    let fields = || proptest::collection::vec(ty(), 1..4);
    let step = prop_oneof![
        6 => proptest::collection::vec(ty(), 1..6).prop_map(Step::CreateType),
        2 => (any::<u8>(), ty()).prop_map(|(at, ty)| Step::AddField(at, ty)),
        1 => any::<u8>().prop_map(Step::RenameField),
        3 => proptest::collection::vec(ty(), 1..4).prop_map(Step::CreateTable),
        1 => (any::<u8>(), ty()).prop_map(|(at, ty)| Step::AddColumn(at, ty)),
        1 => ([fields(), fields()], any::<u8>()).prop_map(|(of, form)| Step::TypeAgain(of, form)),
    ];
    proptest::collection::vec(step, 30..60)
}

/// The text of a type. Usually uses the newest user types, so that types grow.
fn type_text((form, which): (u8, u8), types: usize, frozen: bool) -> String {
    if types == 0 || form % 8 == 0 {
        return ["int", "text", "tuple<int, text>", "frozen<list<int>>"][which as usize % 4].to_owned();
    }
    let newest = types - 1 - (which as usize % 3).min(types - 1);
    let user = format!("frozen<t{newest}>");
    match form % 8 {
        1 if !frozen => format!("t{newest}"),
        2 => format!("frozen<list<{user}>>"),
        3 if !frozen => format!("map<text, {user}>"),
        4 => format!("tuple<{user}, {user}, int>"),
        5 => format!("vector<{user}, 2>"),
        6 => format!("frozen<map<{user}, {user}>>"),
        _ => user,
    }
}

/// Executes [`Step::TypeAgain`] with a table of this name. Returns whether the type exists then,
/// and the columns of the table.
async fn make_type_again(
    session: &Session,
    of: &[Vec<(u8, u8)>; 2],
    form: u8,
    types: usize,
    table: &str,
) -> (bool, Option<Vec<String>>) {
    let create = |of: &[(u8, u8)]| {
        let fields: Vec<String> =
            of.iter().enumerate().map(|(i, ty)| format!("f{i} {}", type_text(*ty, types, true))).collect();
        format!("CREATE TYPE t{types} ({})", fields.join(", "))
    };
    let column = format!("c0 {}", type_text((1 + form % 7, 0), types + 1, false));
    if session.query(&create(&of[0])).await.is_err() {
        return (false, None);
    }
    if session.query(&format!("CREATE TABLE {table} (p int PRIMARY KEY, v int, {column})")).await.is_err() {
        return (true, None);
    }
    let columns = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    fill(session, table, &columns(&["p", "v", "c0"]).unwrap_or_default()).await;
    session.ok(&format!("ALTER TABLE {table} DROP c0")).await;
    session.ok(&format!("DROP TYPE t{types}")).await;
    if session.query(&create(&of[1])).await.is_err() {
        return (false, columns(&["p", "v"]));
    }
    let added = session.query(&format!("ALTER TABLE {table} ADD {column}")).await.is_ok();
    contents(session, table).await;
    (true, columns(if added { &["p", "v", "c0"] } else { &["p", "v"] }))
}

async fn carry_out(session: &Session, steps: &[Step]) -> (Vec<(String, Vec<String>)>, usize) {
    let (mut types, mut fields, mut tables, mut refused) = (0usize, 0usize, Vec::<(String, Vec<String>)>::new(), 0);
    for step in steps {
        fields += 1;
        let statement = match step {
            Step::CreateType(of) => {
                let of: Vec<String> =
                    of.iter().enumerate().map(|(i, ty)| format!("f{i} {}", type_text(*ty, types, true))).collect();
                format!("CREATE TYPE t{types} ({})", of.join(", "))
            }
            Step::AddField(at, ty) if types > 0 => {
                let at = *at as usize % types;
                format!("ALTER TYPE t{at} ADD a{fields} {}", type_text(*ty, at, true))
            }
            Step::RenameField(at) if types > 0 => {
                format!("ALTER TYPE t{} RENAME f0 TO {}{fields}", *at as usize % types, "long".repeat(10))
            }
            Step::CreateTable(of) => {
                let of: Vec<String> =
                    of.iter().enumerate().map(|(i, ty)| format!("c{i} {}", type_text(*ty, types, false))).collect();
                format!("CREATE TABLE s{} (p int PRIMARY KEY, {})", tables.len(), of.join(", "))
            }
            Step::AddColumn(at, ty) if !tables.is_empty() => {
                let at = *at as usize % tables.len();
                format!("ALTER TABLE s{at} ADD a{fields} {}", type_text(*ty, types, false))
            }
            Step::TypeAgain(of, form) => {
                let table = format!("s{}", tables.len());
                let (made, columns) = make_type_again(session, of, *form, types, &table).await;
                types += usize::from(made);
                tables.extend(columns.map(|columns| (table, columns)));
                continue;
            }
            _ => continue,
        };
        let began = rt::time::now();
        let done = session.query(&statement).await;
        assert!(began.elapsed() < Duration::from_secs(10), "{statement}");
        match (done, step) {
            (Ok(_), Step::CreateType(_)) => types += 1,
            (Ok(_), Step::CreateTable(of)) => {
                let columns = std::iter::once("p".to_owned()).chain((0..of.len()).map(|i| format!("c{i}")));
                tables.push((format!("s{}", tables.len()), columns.collect()));
            }
            (Ok(_), Step::AddColumn(at, _)) => {
                let at = *at as usize % tables.len();
                tables[at].1.push(format!("a{fields}"));
            }
            (Ok(_), _) => {}
            (Err(Error::Invalid(why)), _) => {
                refused += usize::from(why.contains("deep") || why.contains("consist") || why.contains("vector"));
            }
            (Err(error), _) => panic!("{statement}: {error}"),
        }
    }
    (tables, refused)
}

#[test]
fn whatever_ddl_accepts_can_be_stored() {
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    for case in 0..2 {
        let steps = steps().new_tree(&mut runner).expect("steps are made").current();
        let run = |session: Session| {
            let steps = &steps;
            async move {
                session.use_keyspace("ks").await;
                let (tables, refused) = carry_out(&session, steps).await;
                let mut all = Vec::new();
                for (table, columns) in &tables {
                    fill(&session, table, columns).await;
                    all.push((table.clone(), contents(&session, table).await));
                }
                assert!(!all.is_empty() && refused > 0, "{} tables, {refused} refusals", all.len());
                all
            }
        };
        with_restart(&format!("limits-{case}"), run, |session, all| async move {
            for (table, before) in all {
                assert_eq!(contents(&session, &table).await, before, "{table}");
            }
        });
    }
}

async fn refused(session: &Session, statement: &str) -> String {
    let began = rt::time::now();
    let refused = session.query(statement).await.expect_err(statement);
    assert!(began.elapsed() < Duration::from_secs(5), "{statement}");
    assert!(matches!(refused, Error::Invalid(_)), "{statement}: {refused}");
    refused.to_string()
}

#[test]
fn types_beyond_the_limits_are_refused_on_every_path() {
    with_node("beyond", |session| async move {
        session.use_keyspace("ks").await;
        // The deepest allowed type: t30 has depth 32.
        session.ok("CREATE TYPE t0 (a int)").await;
        for level in 1..MAX_TYPE_DEPTH - 1 {
            session.ok(&format!("CREATE TYPE t{level} (a frozen<t{}>)", level - 1)).await;
        }
        let deep = format!("t{}", MAX_TYPE_DEPTH - 2);
        let why = refused(&session, &format!("CREATE TYPE deeper (a frozen<{deep}>)")).await;
        assert_eq!(why, "User type ks.deeper nests types more than 32 deep");
        session.ok(&format!("CREATE TABLE d (p int PRIMARY KEY, v frozen<{deep}>, w {deep})")).await;
        for ty in ["frozen<list<frozen<T>>>", "list<frozen<T>>", "tuple<T>", "map<int, frozen<T>>", "vector<T, 2>"] {
            let ty = ty.replace('T', &deep);
            let why = refused(&session, &format!("CREATE TABLE e (p int PRIMARY KEY, v {ty})")).await;
            assert!(why.contains("more than 32 deep"), "{ty}: {why}");
            let why = refused(&session, &format!("ALTER TABLE d ADD x {ty}")).await;
            assert!(why.contains("more than 32 deep"), "{ty}: {why}");
        }
        let why = refused(&session, "ALTER TYPE t0 ADD b frozen<list<int>>").await;
        assert_eq!(why, format!("User type ks.{deep} nests types more than 32 deep"), "a type that contains it");
        session.ok("ALTER TYPE t0 ADD b int").await;
        session.ok("ALTER TYPE t0 RENAME a TO other").await;
        fill(&session, "d", &["p".into(), "v".into(), "w".into()]).await;

        // Each has four fields of the previous type, so that the limit of 4096 types is reached.
        session.ok("CREATE TYPE w0 (a int, b int, c int, d int)").await;
        for level in 1..5 {
            let below = format!("frozen<w{}>", level - 1);
            session.ok(&format!("CREATE TYPE w{level} (a {below}, b {below}, c {below}, d {below})")).await;
        }
        let why = refused(&session, "CREATE TYPE w5 (a frozen<w4>, b frozen<w4>, c frozen<w4>, d frozen<w4>)").await;
        assert!(why.starts_with("User type ks.w5 consists of more than 4096 types"), "{why}");
        let many = vec!["frozen<w4>"; 20_000].join(", ");
        assert!(refused(&session, &format!("CREATE TABLE e (p int PRIMARY KEY, v tuple<{many}>)")).await.len() < 400);
        session.ok("CREATE TABLE w (p int PRIMARY KEY, v frozen<w4>, l list<frozen<w4>>)").await;
        let why =
            refused(&session, "ALTER TYPE w0 ADD e tuple<int, int, int, int, int, int, int, int, int, int, int, int>")
                .await;
        assert!(why.contains("consists of more than 4096 types"), "{why}");
        let why = refused(&session, "CREATE TABLE e (p int PRIMARY KEY, v vector<tuple<w4, w4>, 2>)").await;
        assert!(why.contains("vector"), "{why}");
        let extent = Extent { depth: 6, nodes: 1 + 4 + 16 + 64 + 256 + 1024 };
        let most = (MAX_TABLE_NODES - 1) / extent.nodes;
        let columns: Vec<String> = (0..=most).map(|n| format!("v{n} frozen<w4>")).collect();
        let why = refused(&session, &format!("CREATE TABLE e (p int PRIMARY KEY, {})", columns.join(", "))).await;
        assert!(why.starts_with("The columns of table ks.e consist of more than 65536 types"), "{why}");
        let fits = columns[..most].join(", ");
        session.ok(&format!("CREATE TABLE filled (p int PRIMARY KEY, {fits})")).await;
        fill(&session, "filled", &["p".into(), "v0".into()]).await;
        assert!(refused(&session, "ALTER TABLE filled ADD more frozen<w4>").await.contains("65536"));
        assert!(refused(&session, "ALTER TYPE w0 ADD e int").await.contains("ks.filled"));
        assert!(extent.nodes < MAX_TYPE_NODES);

        let long = "x".repeat(208);
        for statement in [
            format!("CREATE TYPE {long} (a int)"),
            format!("CREATE TYPE n ({long} int)"),
            format!("ALTER TYPE w0 ADD {long} int"),
            format!("ALTER TYPE w0 RENAME a TO {long}"),
        ] {
            assert!(
                refused(&session, &statement).await.contains("shouldn't be more than 207 characters"),
                "{statement}"
            );
        }
    });
}
