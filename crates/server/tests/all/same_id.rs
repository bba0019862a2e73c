//! A table that is created with the id of a dropped table starts empty, even if commitlogs and
//! directories still hold data of the dropped one.

use crate::support::LAYERS;
use crate::support::{Scratch, ask, keys, live};

const ID: &str = "5a1c395e-b41f-11e5-9f22-ba0be0483c18";

async fn create(table: &str) {
    ask(&format!("CREATE TABLE ks.{table} (k int PRIMARY KEY, v int) WITH id = {ID}")).await.expect("made");
}

async fn insert(table: &str, from: i32) {
    for k in from..from + 10 {
        ask(&format!("INSERT INTO ks.{table} (k, v) VALUES ({k}, {k})")).await.expect("written");
    }
}

/// Rows in sstables and in the commitlog, then the drop.
async fn fill_and_drop(table: &str, flushes: bool) {
    insert(table, 0).await;
    if flushes {
        LAYERS.engine.get().flush(None).await.expect("flushed");
        insert(table, 20).await;
    }
    ask(&format!("DROP TABLE ks.{table}")).await.expect("dropped");
}

#[test]
fn a_table_with_the_id_of_a_dropped_one_begins_empty_and_stays_so_over_a_crash() {
    for (first, second, flushes) in [("t", "t", false), ("t", "t", true), ("t", "u", false), ("t", "u", true)] {
        let scratch = Scratch::new(&format!("same-id-{first}{second}{flushes}"));
        let path = &scratch;
        live(path, false, false, move || async move {
            let options = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
            ask(&format!("CREATE KEYSPACE ks WITH {options} AND tablets = {{'initial': 2}}")).await.expect("made");
            create(first).await;
            fill_and_drop(first, flushes).await;
            create(second).await;
            assert_eq!(keys(&format!("ks.{second}")).await, [] as [i32; 0], "{first}, {second}");
            insert(second, 100).await;
        })
        .expect("it starts");
        for round in 0..2 {
            let found = live(path, false, false, move || async move { keys(&format!("ks.{second}")).await });
            assert_eq!(found.expect("it starts"), (100..110).collect::<Vec<_>>(), "{first}, {second}, start {round}");
        }
    }
}

/// The same id again and again, with kills in between.
#[test]
fn every_table_of_an_id_has_its_own_rows() {
    let scratch = Scratch::new("same-id-again");
    let options = "replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
    live(&scratch, false, false, move || async move {
        ask(&format!("CREATE KEYSPACE ks WITH {options}")).await.expect("made");
        create("t").await;
    })
    .expect("it starts");
    for n in 0..4 {
        let before = live(&scratch, false, n % 2 == 1, move || async move {
            let before = keys("ks.t").await;
            fill_and_drop("t", n % 2 == 0).await;
            create("t").await;
            insert("t", 1000 * (n + 1)).await;
            before
        });
        let own = if n == 0 { Vec::new() } else { (1000 * n..1000 * n + 10).collect() };
        assert_eq!(before.expect("it starts"), own, "table {n}");
    }
}
