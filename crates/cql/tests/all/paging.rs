//! The pages of the query processor: what paging states are bound to, and when a page may be empty,
//! with the setting that decides it. No row is lost or repeated at any page boundary.

use crate::support::{CLUSTER, SHARDS};
use crate::support::{Session, show_rows, values, with_node};
use bytes::Bytes;
use cluster::metadata::{Op, PagingKey};
use coordinator::PageLimits;
use cql::api::{BoundValues, Rows};
use cql::system::{Setting, SettingRefused, Settings, SettingsTable};
use cql::{Error, QueryParams, ResultKind, StatementResult};
use model::CqlType;
use model::types::Value;
use rt::time::Duration;
use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;

fn rows(answer: Result<StatementResult, Error>) -> Rows {
    match answer.expect("the statement is fine").kind {
        ResultKind::Rows(rows) => rows,
        other => panic!("{other:?}"),
    }
}

async fn page(
    session: &Session,
    text: &str,
    bound: BoundValues,
    state: Option<Bytes>,
) -> Result<StatementResult, Error> {
    let params = QueryParams { page_size: Some(2), paging_state: state, values: bound, ..QueryParams::default() };
    session.processor.query(&session.client, text, &params).await
}

fn refusal() -> Error {
    Error::Protocol("Invalid value for the paging state".into())
}

/// The rows of each page.
async fn pages(session: &Session, text: &str, size: i32) -> Vec<Vec<String>> {
    let mut params = QueryParams { page_size: Some(size), ..QueryParams::default() };
    let mut all = Vec::new();
    loop {
        let page = rows(session.processor.query(&session.client, text, &params).await);
        all.push(show_rows(&page));
        assert!(all.len() < 2000, "{text} does not end");
        match page.paging_state {
            Some(state) => params.paging_state = Some(state),
            None => return all,
        }
    }
}

async fn table(session: &Session) {
    session.use_keyspace("ks").await;
    for name in ["t", "u"] {
        session.ok(&format!("CREATE TABLE {name} (p int, c int, v int, s int static, PRIMARY KEY (p, c))")).await;
        for p in 0..5 {
            for c in 0..6 {
                session.ok(&format!("INSERT INTO {name} (p, c, v) VALUES ({p}, {c}, {})", c % 3)).await;
            }
        }
    }
}

fn set_limits(change: impl FnOnce(&mut PageLimits)) {
    let coordinator = SHARDS.coordinator.get();
    let mut limits = coordinator.page_limits();
    change(&mut limits);
    coordinator.set_page_limits(limits);
}

const INT: CqlType = CqlType::Int;

#[test]
fn equal_restrictions_share_their_states() {
    with_node("paging-equal", |session| async move {
        table(&session).await;
        let int = |n| (&INT, Value::Int(n));
        let ints = CqlType::List { elem: INT.into(), frozen: true };
        let list = |items: &[i32]| (&ints, Value::List(items.iter().map(|n| Value::Int(*n)).collect()));
        let none = || values(&[]);
        let groups = [
            vec![
                ("SELECT * FROM t WHERE p = 1 AND c > 0", none()),
                ("SELECT * FROM t WHERE p = ? AND c > ?", values(&[int(1), int(0)])),
                ("SELECT c, v FROM t WHERE c > 0 AND p = 1", none()),
                ("SELECT * FROM ks.t WHERE p = 1 AND c > ?", values(&[int(0)])),
            ],
            vec![
                ("SELECT * FROM t WHERE p IN (3, 1, 2)", none()),
                ("SELECT * FROM t WHERE p IN (1, 2, 3, 3)", none()),
                ("SELECT * FROM t WHERE p IN (?, 2, ?)", values(&[int(3), int(1)])),
                ("SELECT * FROM t WHERE p IN ?", values(&[list(&[2, 1, 3])])),
            ],
            vec![
                ("SELECT * FROM t WHERE token(p) > token(100)", none()),
                ("SELECT * FROM t WHERE token(p) > token(?)", values(&[int(100)])),
            ],
            vec![
                ("SELECT * FROM t LIMIT 7", none()),
                ("SELECT * FROM t LIMIT ?", values(&[int(7)])),
                ("SELECT * FROM t LIMIT 9", none()),
            ],
            vec![
                ("SELECT * FROM t WHERE v > 0 AND c < 4 ALLOW FILTERING", none()),
                ("SELECT p FROM t WHERE c < ? AND v > ? ALLOW FILTERING", values(&[int(4), int(0)])),
            ],
            vec![("SELECT * FROM t WHERE p = 1 ORDER BY c DESC", none())],
            vec![("SELECT DISTINCT p FROM t", none())],
            vec![("SELECT * FROM t PER PARTITION LIMIT 3", none())],
            vec![("SELECT * FROM t", none())],
            vec![("SELECT * FROM u", none())],
            vec![("SELECT * FROM t WHERE p = 1", none())],
            vec![("SELECT * FROM t WHERE p = 2", none())],
            vec![("SELECT * FROM t WHERE p = 1 AND c >= 0", none())],
            vec![("SELECT * FROM t WHERE p IN (1, 2)", none())],
            vec![("SELECT * FROM t WHERE v > 0 ALLOW FILTERING", none())],
            vec![("SELECT * FROM t WHERE v >= 0 ALLOW FILTERING", none())],
            vec![("SELECT table_name FROM system_schema.tables", none())],
            vec![("SELECT * FROM system_schema.columns", none())],
        ];
        for (n, group) in groups.iter().enumerate() {
            for (text, bound) in group {
                let state = rows(page(&session, text, bound.clone(), None).await).paging_state.expect(text);
                for (m, other) in groups.iter().enumerate() {
                    for (other, bound) in other {
                        let answer = page(&session, other, bound.clone(), Some(state.clone())).await;
                        assert_eq!(answer.as_ref().err(), (n != m).then(refusal).as_ref(), "{text} / {other}");
                    }
                }
                let count = page(&session, "SELECT count(*) FROM t", values(&[]), Some(state.clone())).await;
                assert_eq!(count.err(), Some(refusal()));
            }
        }
    });
}

#[test]
fn function_calls_stand_for_themselves() {
    with_node("paging-calls", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c timeuuid, PRIMARY KEY (p, c))").await;
        for _ in 0..7 {
            session.ok("INSERT INTO t (p, c) VALUES (1, now())").await;
        }
        assert_eq!(pages(&session, "SELECT c FROM t WHERE p = 1 AND c < now()", 2).await.concat().len(), 7);
        let of = |text: &'static str| page(&session, text, values(&[]), None);
        let call = "SELECT c FROM t WHERE p = 1 AND c > mintimeuuid('2020-01-01 00:00:00+0000')";
        let other = "SELECT c FROM t WHERE p = 1 AND c > mintimeuuid('2021-01-01 00:00:00+0000')";
        let result = "SELECT c FROM t WHERE p = 1 AND c > 00000000-2c28-11ea-8080-808080808080";
        let state = rows(of(call).await).paging_state.expect("there is more");
        for (text, refused) in [(call, false), (other, true), (result, true)] {
            let answer = page(&session, text, values(&[]), Some(state.clone())).await;
            assert_eq!(answer.is_err(), refused, "{text}");
        }
        let timestamp = (&CqlType::Timestamp, Value::Timestamp(1_577_836_800_000));
        let bound = "SELECT c FROM t WHERE p = 1 AND c > mintimeuuid(?)";
        assert!(page(&session, bound, values(&[timestamp]), Some(state)).await.is_ok(), "the same call");
    });
}

#[test]
fn a_state_is_of_one_role_and_survives_alter() {
    with_node("paging-role", |session| async move {
        table(&session).await;
        let text = "SELECT * FROM t WHERE p = 1";
        let state = rows(page(&session, text, values(&[]), None).await).paging_state.expect("there is more");
        session.ok("ALTER TABLE t ADD w text").await;
        let second = rows(page(&session, text, values(&[]), Some(state.clone())).await);
        assert_eq!(show_rows(&second)[0], "p=1, c=2, s=null, v=2, w=null");
        *session.client.role.borrow_mut() = Some("somebody".into());
        assert_eq!(page(&session, text, values(&[]), Some(state)).await.err(), Some(refusal()));
        // A table of the same name is another table.
        let state = rows(page(&session, text, values(&[]), None).await).paging_state.expect("there is more");
        session.ok("DROP TABLE t").await;
        session.ok("CREATE TABLE t (p int, c int, v int, s int static, PRIMARY KEY (p, c))").await;
        let gone = Error::Invalid(
            "The table of the paging state does not exist: it was dropped, or the state is of another cluster".into(),
        );
        assert_eq!(page(&session, text, values(&[]), Some(state)).await.err(), Some(gone));
    });
}

#[test]
fn states_outlive_the_rotation_of_keys_and_not_their_own_key() {
    async fn change_keys(op: impl Fn(u32) -> Op + Send + 'static) {
        let changed = cluster::metadata::change::<(), Infallible, _>(CLUSTER.metadata, move |metadata, _| {
            let (newest, _) = metadata.paging_keys.newest().expect("there is one from the start");
            Ok((vec![op(newest)], ()))
        });
        changed.await.expect("the keys can be changed");
    }
    with_node("paging-keys", |session| async move {
        table(&session).await;
        let text = "SELECT * FROM t";
        let fresh = || page(&session, text, values(&[]), None);
        let old = rows(fresh().await).paging_state.expect("there is more");
        change_keys(|newest| Op::PutPagingKey(PagingKey { id: newest + 1, secret: [9; 32], created: 1 })).await;
        let new = rows(fresh().await).paging_state.expect("there is more");
        assert_ne!(old[1..5], new[1..5], "the new key is used");
        for state in [&old, &new] {
            assert!(page(&session, text, values(&[]), Some(state.clone())).await.is_ok());
        }
        change_keys(|newest| Op::DropPagingKey(newest - 1)).await;
        assert_eq!(page(&session, text, values(&[]), Some(old)).await.err(), Some(refusal()));
        assert!(page(&session, text, values(&[]), Some(new)).await.is_ok());
        assert!(SHARDS.coordinator.get().metrics().refused_states > 0);
    });
}

#[test]
fn a_wrong_state_is_refused_whatever_the_query_finds() {
    with_node("paging-wrong", |session| async move {
        table(&session).await;
        let state = rows(page(&session, "SELECT * FROM t", values(&[]), None).await).paging_state.expect("more");
        set_limits(|limits| limits.state_expiry = Duration::ZERO);
        let mut old = 0;
        while page(&session, "SELECT * FROM t", values(&[]), Some(state.clone())).await.is_ok() {
            rt::time::sleep(Duration::from_millis(100)).await;
            old += 1;
            assert!(old < 100, "it does not expire");
        }
        for text in [
            "SELECT * FROM t",
            "SELECT * FROM t WHERE p = 1 AND c = 1",
            "SELECT * FROM t WHERE p = null",
            "SELECT * FROM t WHERE p = 1 AND c > 5 AND c < 3",
            "SELECT count(*) FROM t",
            "SELECT * FROM t WHERE v = 1 ALLOW FILTERING",
            "SELECT * FROM system.local",
        ] {
            for state in [state.clone(), Bytes::new(), Bytes::from_static(&[0; 100]), Bytes::from(vec![2; 1 << 20])] {
                assert_eq!(page(&session, text, values(&[]), Some(state)).await.err(), Some(refusal()), "{text}");
            }
        }
    });
}

/// A table with everything on which a page can end: rows, dead rows, range tombstones, dead cells,
/// expired rows, static rows, dead partitions.
async fn ruins(session: &Session) {
    session.use_keyspace("ks").await;
    session.ok("CREATE TABLE t (p int, c int, v int, s int static, PRIMARY KEY (p, c))").await;
    for p in 0..24 {
        if p % 6 == 5 {
            session.ok(&format!("UPDATE t SET s = {p} WHERE p = {p}")).await;
            if p % 12 == 5 {
                continue;
            }
        }
        for c in 0..20 {
            session.ok(&format!("INSERT INTO t (p, c, v) VALUES ({p}, {c}, {})", c % 5)).await;
        }
        match p % 6 {
            0 => {
                session.ok(&format!("DELETE FROM t WHERE p = {p}")).await;
            }
            1 => {
                for c in 0..17 {
                    session.ok(&format!("DELETE FROM t WHERE p = {p} AND c = {c}")).await;
                }
            }
            2 => {
                for c in [0, 4, 8, 12] {
                    session.ok(&format!("DELETE FROM t WHERE p = {p} AND c > {c} AND c < {}", c + 3)).await;
                }
                session.ok(&format!("UPDATE t SET s = {p} WHERE p = {p}")).await;
            }
            3 => {
                session.ok(&format!("UPDATE t SET s = 1 WHERE p = {p}")).await;
                session.ok(&format!("DELETE s FROM t WHERE p = {p}")).await;
                session.ok(&format!("DELETE FROM t WHERE p = {p} AND c <= 13")).await;
            }
            _ => {}
        }
    }
}

#[test]
fn limits_and_aggregates_are_exact_over_every_boundary() {
    with_node("paging-exact", |session| async move {
        ruins(&session).await;
        let statements = [
            "SELECT * FROM t",
            "SELECT * FROM t LIMIT 31",
            "SELECT * FROM t PER PARTITION LIMIT 3",
            "SELECT * FROM t PER PARTITION LIMIT 3 LIMIT 20",
            "SELECT DISTINCT p, s FROM t",
            "SELECT DISTINCT p FROM t LIMIT 5",
            "SELECT * FROM t WHERE p = 1",
            "SELECT * FROM t WHERE p = 2 ORDER BY c DESC",
            "SELECT * FROM t WHERE p = 3 ORDER BY c DESC LIMIT 4",
            "SELECT * FROM t WHERE p = 0",
            "SELECT * FROM t WHERE p = 5",
            "SELECT * FROM t WHERE p IN (0, 1, 2, 3, 5, 77)",
            "SELECT * FROM t WHERE p IN (0, 1, 2, 3, 5, 77) PER PARTITION LIMIT 2",
            "SELECT * FROM t WHERE p IN (1, 2, 3) AND c IN (2, 3, 14, 18)",
            "SELECT * FROM t WHERE token(p) > -3000000000000000000 AND token(p) < 6000000000000000000",
            "SELECT * FROM t WHERE v = 2 ALLOW FILTERING",
            "SELECT * FROM t WHERE v = 2 PER PARTITION LIMIT 1 LIMIT 7 ALLOW FILTERING",
            "SELECT count(*), sum(v), min(c), max(c), count(s) FROM t",
            "SELECT count(*) FROM t WHERE v = 2 ALLOW FILTERING",
            "SELECT count(*) FROM t WHERE p IN (1, 2, 3)",
        ];
        let mut truth = Vec::new();
        for text in statements {
            truth.push(session.rows(text).await);
        }
        assert!(truth.iter().all(|rows| !rows.is_empty() || rows == &truth[9]));
        for tombstones in [1, 2, 3, 7, 10_000] {
            for tombstones_are_set in [false, true] {
                set_limits(|limits| {
                    (limits.tombstones, limits.tombstones_are_set) = (tombstones, tombstones_are_set);
                });
                for (text, truth) in statements.iter().zip(&truth) {
                    for size in [1, 2, 3, 7, 50] {
                        let pages = pages(&session, text, size).await;
                        let what = format!("{text} in pages of {size}, {tombstones} tombstones ({tombstones_are_set})");
                        assert_eq!(&pages.concat(), truth, "{what}");
                        let (_, before) = pages.split_last().expect("there is a page");
                        assert!(tombstones_are_set || before.iter().all(|page| !page.is_empty()), "{what}: {pages:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_set_limit_of_tombstones_cuts_pages() {
    with_node("paging-cuts", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, v int, PRIMARY KEY (p, c))").await;
        for c in 0..11 {
            session.ok(&format!("INSERT INTO t (p, c, v) VALUES (1, {c}, 0)")).await;
        }
        for c in 30..50 {
            session.ok(&format!("DELETE FROM t WHERE p = 1 AND c = {c}")).await;
        }
        session.ok("INSERT INTO t (p, c, v) VALUES (1, 51, 0)").await;
        // Twelve ranges are 24 range tombstone changes.
        for c in (0..48).step_by(4) {
            session.ok(&format!("DELETE FROM t WHERE p = 2 AND c > {c} AND c < {}", c + 3)).await;
        }
        session.ok("INSERT INTO t (p, c, v) VALUES (2, 2000, 0)").await;
        let sizes = async |text: &str| -> Vec<usize> { pages(&session, text, 10).await.iter().map(Vec::len).collect() };
        let filter = " AND v = 0 ALLOW FILTERING";
        set_limits(|limits| limits.tombstones = 10);
        for text in ["SELECT c FROM t WHERE p = 1", "SELECT c FROM t WHERE p = 2"] {
            let expected: &[usize] = if text.ends_with('1') { &[10, 1, 1] } else { &[1] };
            assert_eq!(sizes(text).await, expected, "{text}");
            assert_eq!(sizes(&format!("{text}{filter}")).await, expected, "{text}{filter}");
        }
        set_limits(|limits| limits.tombstones_are_set = true);
        for text in ["SELECT c FROM t WHERE p = 1", "SELECT c FROM t WHERE p = 2"] {
            let expected: &[usize] = if text.ends_with('1') { &[10, 1, 0, 1] } else { &[0, 0, 1] };
            assert_eq!(sizes(text).await, expected, "{text}");
            assert_eq!(sizes(&format!("{text}{filter}")).await, expected, "{text}{filter}");
        }
        let unpaged = session.rows("SELECT c FROM t WHERE p = 2").await;
        assert_eq!(unpaged, ["c=2000"]);
    });
}

#[test]
fn a_spent_budget_gives_an_empty_page_that_says_why() {
    with_node("paging-budget", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, v int, PRIMARY KEY (p, c))").await;
        for c in 0..300 {
            session.ok(&format!("DELETE FROM t WHERE p = 1 AND c = {c}")).await;
            session.ok(&format!("INSERT INTO t (p, c, v) VALUES (2, {c}, 0)")).await;
        }
        session.ok("INSERT INTO t (p, c, v) VALUES (1, 300, 0)").await;
        let info = async |text: &str, size| {
            let params = QueryParams { page_size: Some(size), page_info: true, ..QueryParams::default() };
            let answer = session.processor.query(&session.client, text, &params).await.expect(text);
            let info = String::from_utf8(answer.page_info.clone().expect("it was asked for").to_vec()).expect("text");
            (rows(Ok(answer)).count, info)
        };
        let end = |reason: &str| format!("{{\"end\":\"{reason}\",");
        let dead = "SELECT c FROM t WHERE p = 1";
        let filtered = "SELECT c FROM t WHERE p = 2 AND v = 7 ALLOW FILTERING";
        set_limits(|limits| limits.tombstones = 100);
        let (count, told) = info(dead, 10).await;
        assert_eq!(count, 1);
        assert!(told.starts_with(&end("exhausted")), "{told}");
        assert!(told.contains("\"rows_examined\":301,") && told.contains("\"tombstones_examined\":300,"), "{told}");
        assert!(told.ends_with("\"replica_pages\":4}"), "{told}");

        set_limits(|limits| limits.empty_page_bytes = 1);
        for text in [dead, filtered] {
            let (count, told) = info(text, 10).await;
            assert_eq!(count, 0);
            assert!(told.starts_with(&end("memory budget")), "{told}");
        }
        set_limits(|limits| (limits.empty_page_bytes, limits.empty_page_time) = (u64::MAX, Duration::ZERO));
        for text in [dead, filtered] {
            let (count, told) = info(text, 10).await;
            assert_eq!(count, 0);
            assert!(told.starts_with(&end("time budget")), "{told}");
            assert_eq!(pages(&session, text, 10).await.concat().len(), usize::from(text == dead));
        }
        set_limits(|limits| limits.tombstones_are_set = true);
        assert!(info(dead, 10).await.1.starts_with(&end("tombstones")));
        set_limits(|limits| limits.bytes = 10);
        assert!(info("SELECT c FROM t WHERE p = 2", 10).await.1.starts_with(&end("bytes")));
        set_limits(|limits| limits.bytes = 1 << 20);
        assert!(info("SELECT c FROM t WHERE p = 2", 10).await.1.starts_with(&end("rows")));
        assert!(info("SELECT c FROM t WHERE p = 2 LIMIT 3", 10).await.1.starts_with(&end("limit")));
        assert!(
            info("SELECT c FROM t WHERE p = 2 AND v = 0 LIMIT 3 ALLOW FILTERING", 10)
                .await
                .1
                .starts_with(&end("limit"))
        );
        assert!(info("SELECT count(*) FROM t WHERE p = 2", 10).await.1.contains("\"rows_examined\":300,"));
        assert!(info("SELECT table_name FROM system_schema.tables", 1).await.1.starts_with(&end("rows")));
        let params = QueryParams { page_size: Some(10), ..QueryParams::default() };
        let answer = session.processor.query(&session.client, dead, &params).await.expect("it is fine");
        assert_eq!(answer.page_info, None, "the client did not ask for it");
    });
}

/// A configuration with two settings.
struct Two(Cell<u64>);

impl Settings for Two {
    fn list(&self) -> Vec<Setting> {
        let value = self.0.get().to_string();
        let fixed = Setting { name: "fixed", source: "yaml", kind: "string", value: "\"x\"".into() };
        vec![Setting { name: "live", source: "default", kind: "integer", value }, fixed]
    }

    fn set(&self, name: &str, value: &str) -> Result<(), SettingRefused> {
        match name {
            "live" => value.parse().map(|n| self.0.set(n)).map_err(|_| SettingRefused::Wrong(value.to_owned())),
            "fixed" => Err(SettingRefused::NotLive),
            _ => Err(SettingRefused::Unknown { meant: None }),
        }
    }
}

#[test]
fn settings_are_changed_by_update() {
    with_node("paging-settings", |session| async move {
        assert!(session.rows("SELECT name FROM system.config").await.len() > 2);
        SHARDS.system.settings.set(Rc::new(SettingsTable(Rc::new(Two(Cell::new(5))))));
        let shown = "SELECT name, source, type, value FROM system.config WHERE name IN ('live', 'fixed')";
        assert_eq!(
            session.rows(shown).await,
            [
                "name='fixed', source='yaml', type='string', value='\"x\"'",
                "name='live', source='default', type='integer', value='5'"
            ]
        );
        session.ok("UPDATE system.config SET value = '6' WHERE name = 'live'").await;
        let texts = |texts: &[&str]| {
            values(&texts.iter().map(|text| (&CqlType::Text, Value::Text((*text).into()))).collect::<Vec<_>>())
        };
        let value = "SELECT value FROM system.config WHERE name = 'live'";
        assert_eq!(session.rows(value).await, ["value='6'"]);
        let params = QueryParams { values: texts(&["7", "live"]), ..QueryParams::default() };
        let update = "UPDATE system.config SET value = ? WHERE name = ?";
        session.processor.query(&session.client, update, &params).await.expect("it can be changed");
        session.ok("INSERT INTO system.config (name, value) VALUES ('live', '8')").await;
        assert_eq!(session.rows(value).await, ["value='8'"]);
        for (statement, why) in [
            ("SET value = 'x' WHERE name = 'live'", "cannot parse option value"),
            ("SET value = '1' WHERE name = 'fixed'", "option is not live-updateable"),
            ("SET value = '1' WHERE name = 'none'", "no such option"),
            ("SET source = 'default' WHERE name = 'live'", "option value is required"),
            ("SET source = 'default', value = '1' WHERE name = 'live'", "option source is not updateable"),
            ("SET type = 'bool', value = '1' WHERE name = 'live'", "option type is immutable"),
        ] {
            let refused = session.query(&format!("UPDATE system.config {statement}")).await.expect_err(statement);
            assert_eq!(refused.code(), 0x1500, "{statement}: {refused}");
            assert!(refused.to_string().contains(why), "{statement}: {refused}");
        }
        for text in [
            "DELETE FROM system.config WHERE name = 'live'",
            "UPDATE system.local SET rack = 'x' WHERE key = 'local'",
            "BEGIN BATCH UPDATE system.config SET value = '1' WHERE name = 'live'; APPLY BATCH",
        ] {
            assert!(session.query(text).await.is_err(), "{text}");
        }
        assert_eq!(session.rows(value).await, ["value='8'"]);
    });
}
