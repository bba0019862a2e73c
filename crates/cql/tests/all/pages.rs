//! Pages of all kinds of statements, and their paging states.

use crate::support::statements::rows;
use crate::support::{Session, show_rows, with_node};
use bytes::Bytes;
use cql::{Error, QueryParams};

/// All rows of a statement, read with this page size, and the sizes of the pages.
async fn page_through(session: &Session, statement: &str, size: i32) -> (Vec<String>, Vec<u32>) {
    let mut params = QueryParams { page_size: Some(size), ..QueryParams::default() };
    let (mut all, mut sizes) = (Vec::new(), Vec::new());
    loop {
        let page = rows(session.processor.query(&session.client, statement, &params).await);
        all.extend(show_rows(&page));
        sizes.push(page.count);
        assert!(sizes.len() < 1000, "{statement} does not end");
        match page.paging_state {
            Some(state) => params.paging_state = Some(state),
            None => return (all, sizes),
        }
    }
}

#[test]
fn pages_give_the_rows_of_the_whole() {
    with_node("pages", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (p int, c int, v int, s int static, PRIMARY KEY (p, c))").await;
        for p in 0..6 {
            for c in 0..p {
                session.ok(&format!("INSERT INTO t (p, c, v) VALUES ({p}, {c}, {})", (p + c) % 3)).await;
            }
            session.ok(&format!("UPDATE t SET s = {p} WHERE p = {p}")).await;
        }
        for statement in [
            "SELECT * FROM t",
            "SELECT v, token(p) FROM t",
            "SELECT * FROM t WHERE p = 5",
            "SELECT * FROM t WHERE p = 5 ORDER BY c DESC",
            "SELECT * FROM t WHERE p = 5 AND c IN (0, 2, 4)",
            "SELECT * FROM t WHERE p IN (5, 0, 3, 99, 4)",
            "SELECT * FROM t WHERE p IN (5, 0, 3, 99, 4) LIMIT 7",
            "SELECT * FROM t PER PARTITION LIMIT 2",
            "SELECT * FROM t WHERE p IN (1, 2, 3, 4, 5) PER PARTITION LIMIT 3 LIMIT 10",
            "SELECT DISTINCT p, s FROM t",
            "SELECT * FROM t WHERE v = 1 ALLOW FILTERING",
            "SELECT * FROM t WHERE v > 0 LIMIT 5 ALLOW FILTERING",
            "SELECT * FROM t WHERE v > 0 PER PARTITION LIMIT 2 ALLOW FILTERING",
            "SELECT * FROM t WHERE v > 0 PER PARTITION LIMIT 2 LIMIT 4 ALLOW FILTERING",
            "SELECT count(*), max(v) FROM t",
            "SELECT * FROM t WHERE token(p) > 0",
            "SELECT table_name FROM system_schema.tables",
        ] {
            let whole = session.rows(statement).await;
            for size in [1, 2, 3, 5, 100] {
                let (paged, sizes) = page_through(&session, statement, size).await;
                assert_eq!(paged, whole, "{statement} in pages of {size}");
                assert!(sizes.iter().all(|rows| *rows <= size as u32), "{statement}: pages of {sizes:?}");
            }
        }
        let params = QueryParams { paging_state: Some(Bytes::from_static(b"junk")), ..QueryParams::default() };
        for statement in
            ["SELECT * FROM t", "SELECT * FROM t WHERE v = 1 ALLOW FILTERING", "SELECT key FROM system.local"]
        {
            let refused = session.processor.query(&session.client, statement, &params).await.unwrap_err();
            assert_eq!(refused, Error::Protocol("Invalid value for the paging state".into()), "{statement}");
        }
        let params = QueryParams { page_size: Some(10), ..QueryParams::default() };
        let both = "SELECT * FROM t WHERE p IN (1, 2) ORDER BY c";
        let refused = session.processor.query(&session.client, both, &params).await.unwrap_err();
        assert!(refused.to_string().starts_with("Cannot page queries with both ORDER BY and a IN"), "{refused}");
    });
}

#[test]
fn a_paging_state_of_a_dropped_table_is_an_invalid_request() {
    with_node("old-pages", |session| async move {
        session.use_keyspace("ks").await;
        let statements =
            ["SELECT * FROM t", "SELECT * FROM t WHERE v > 0 ALLOW FILTERING", "SELECT p FROM t GROUP BY p"];
        let create = async |ty: &str| {
            session.ok(&format!("CREATE TABLE t (p int PRIMARY KEY, v {ty})")).await;
            for p in 0..10 {
                session.ok(&format!("INSERT INTO t (p, v) VALUES ({p}, 1)")).await;
            }
        };
        let page = async |statement: &str, paging_state: Option<Bytes>| {
            let params = QueryParams { page_size: Some(2), paging_state, ..QueryParams::default() };
            session.processor.query(&session.client, statement, &params).await
        };
        create("bigint").await;
        let mut states = Vec::new();
        for statement in statements {
            let state = rows(page(statement, None).await).paging_state.expect("there is another page");
            assert!(page(statement, Some(state.clone())).await.is_ok());
            states.push(state);
        }
        session.ok("DROP TABLE t").await;
        create("double").await;
        for (statement, state) in statements.into_iter().zip(states) {
            let refused = page(statement, Some(state.clone())).await.unwrap_err();
            assert_eq!(
                refused,
                Error::Invalid(
                    "The table of the paging state does not exist: it was dropped, or the state is of another cluster"
                        .into()
                ),
                "{statement}"
            );
            // An invalid paging state is a protocol error.
            for at in [0, state.len() - 20, state.len() - 1] {
                let mut forged = state.to_vec();
                forged[at] ^= 1;
                let refused = page(statement, Some(forged.into())).await.unwrap_err();
                assert_eq!(refused.code(), 0x000A, "{statement}, byte {at}: {refused}");
            }
        }
    });
}
