//! The large-data guardrails, for what one statement writes.

use crate::support::{Session, with_node};
use cql::Config;
use cql::guardrails::Guardrails;
use cql::large_data::{LargeDataLimits, Thresholds};

/// Limits: cells of 10 and 20 bytes, rows of 500 and 1000 bytes, collections of 2 and 4 elements.
fn set_limits(session: &Session, warns_clients: bool) {
    let limits = |warned, refused| Thresholds { warned, refused };
    let (cell, row, collection) = (limits(10, 20), limits(500, 1000), limits(2, 4));
    let large_data = LargeDataLimits { cell, row, collection, warns_clients };
    let guardrails = Guardrails { large_data, ..Guardrails::default() };
    session.processor.set_config(Config { guardrails, ..(*session.processor.config()).clone() });
}

/// The outcome of a statement: its warnings or its error.
async fn outcome(session: &Session, text: &str) -> String {
    match session.query(text).await {
        Ok(answer) => answer.warnings.join("; "),
        Err(error) => format!("{:04x} {error}", error.code()),
    }
}

#[test]
fn writes_are_checked_where_the_table_asks_for_it() {
    with_node("large-data", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int PRIMARY KEY, v text, m map<int, text>) WITH large_data_guardrails_enabled = true").await;
        session.ok("CREATE TABLE free (p int PRIMARY KEY, v text, m map<int, text>)").await;
        set_limits(&session, true);
        let text = |len: usize| "x".repeat(len);
        let soft = |what: &str| format!("Large data guardrail: Soft limit violation for {what}");
        let insert = |table: &str, v: &str, elements: usize, element: &str| {
            let entries: Vec<String> = (0..elements).map(|key| format!("{key}: '{element}'")).collect();
            format!("INSERT INTO {table} (p, v, m) VALUES (1, '{v}', {{{}}})", entries.join(", "))
        };
        for (v, elements, element, expected) in [
            (text(10), 2, text(10), String::new()),
            // As in ScyllaDB, the elements of a collection are counted, and are no large cells.
            (text(10), 2, text(25), String::new()),
            (text(11), 2, text(1), soft("cell")),
            (text(11), 3, text(1), soft("cell, collection")),
        ] {
            assert_eq!(outcome(&session, &insert("t", &v, elements, &element)).await, expected);
        }
        for (v, elements, expected) in [
            (text(21), 1, "cell value size 21 exceeds hard limit 20 (keyspace=ks, table=t, column=v)"),
            (text(1), 5, "collection element count 5 exceeds hard limit 4 (keyspace=ks, table=t, column=m)"),
        ] {
            let refused = outcome(&session, &insert("t", &v, elements, "a")).await;
            assert!(refused.starts_with("2200 Large data guardrail: ") && refused.contains(expected), "{refused}");
            assert_eq!(outcome(&session, &insert("free", &v, elements, "a")).await, "");
            let batch =
                format!("BEGIN BATCH {}; {}; APPLY BATCH", insert("free", "a", 1, "a"), insert("t", &v, elements, "a"));
            assert!(outcome(&session, &batch).await.contains(expected));
        }
        // Nothing of a refused batch was written. Deletions are never large.
        assert_eq!(session.rows("SELECT v FROM t").await, [format!("v='{}'", text(11))]);
        session.ok("DELETE m[0], m[1], m[2], m[3], m[4] FROM t WHERE p = 1 BYPASS LARGE_DATA_GUARDRAILS").await;
        let numbers = session.processor.statistics().violations;
        let of = |guardrail: cql::guardrails::Guardrail| numbers[guardrail as usize];
        use cql::guardrails::Guardrail::*;
        assert_eq!(
            [of(LargeCellWarned), of(LargeCell), of(LargeCollectionWarned), of(LargeCollection), of(LargeRow)],
            [2, 2, 1, 2, 0]
        );

        set_limits(&session, false);
        assert_eq!(outcome(&session, &insert("t", &text(11), 1, "a")).await, "", "the log has it");
        session.ok("ALTER TABLE t WITH large_data_guardrails_enabled = false").await;
        assert_eq!(outcome(&session, &insert("t", &text(100), 5, "a")).await, "");
    });
}
