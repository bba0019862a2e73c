//! Traces of requests are stored where clients read them.

use crate::support::{Session, with_node};
use cql::QueryParams;

/// The command and text of a trace's session, once it is stored, and the number of its events.
async fn trace_of(session: &Session, trace: uuid::Uuid) -> (String, usize) {
    let sessions =
        format!("SELECT command, duration, parameters['query'] FROM system_traces.sessions WHERE session_id = {trace}");
    for _ in 0..6000 {
        if let [row] = &session.rows(&sessions).await[..] {
            let events = format!("SELECT activity FROM system_traces.events WHERE session_id = {trace}");
            return (row.clone(), session.rows(&events).await.len());
        }
        rt::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("the trace was not written");
}

#[test]
fn traces_are_written_down() {
    with_node("traces", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY)").await;
        let query = async |text: &str| {
            let trace = rt::random::time_uuid();
            let params = QueryParams { trace: Some(trace), ..QueryParams::default() };
            let answer = session.processor.query(&session.client, text, &params).await;
            (answer.is_ok(), trace_of(&session, trace).await)
        };
        let check = |command: &str, text: &str, (row, events): (String, usize)| {
            assert!(row.starts_with(&format!("command='{command}', duration=")), "{row}");
            assert!(row.ends_with(&format!("='{text}'")), "{row}");
            assert!(events > 0, "{row}");
        };
        for (text, works) in [("SELECT * FROM t", true), ("SELECT * FROM nowhere", false)] {
            let (worked, trace) = query(text).await;
            assert_eq!(worked, works, "{text}");
            check("QUERY", text, trace);
        }
        for (text, works) in [("INSERT INTO t (p) VALUES (?)", true), ("INSERT INTO t (q) VALUES (?)", false)] {
            let trace = rt::random::time_uuid();
            let prepared = session.processor.prepare(&session.client, text, Some(trace)).await;
            assert_eq!(prepared.is_ok(), works, "{text}");
            check("PREPARE", text, trace_of(&session, trace).await);
        }
    });
}

/// Events are stored after the answer. Their ids contain their times.
#[test]
fn events_have_their_own_times() {
    with_node("trace-times", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY)").await;
        let trace = rt::random::time_uuid();
        let params = QueryParams { trace: Some(trace), ..QueryParams::default() };
        session.processor.query(&session.client, "SELECT * FROM t", &params).await.expect("rows");
        trace_of(&session, trace).await;
        let of = |columns: &str, table: &str| {
            format!("SELECT {columns} FROM system_traces.{table} WHERE session_id = {trace}")
        };
        let number = |text: &str| text.rsplit('=').next().and_then(|n| n.parse::<i64>().ok()).expect("a number");
        let started_at = number(&session.rows(&of("toUnixTimestamp(started_at) AS t", "sessions")).await[0]);
        let times = session.rows(&of("toUnixTimestamp(event_id) AS t", "events")).await;
        let elapsed = session.rows(&of("source_elapsed", "events")).await;
        assert!(!times.is_empty());
        for (time, elapsed) in times.iter().zip(&elapsed) {
            assert_eq!(number(time), started_at + number(elapsed) / 1000, "{times:?} {elapsed:?}");
        }
    });
}
