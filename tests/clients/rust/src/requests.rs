//! Features of the driver beyond plain statements. Mapping: rows as structs and as streams,
//! user-defined types as structs. Sessions: keyspaces, compression, caches of statements, profiles,
//! the driver's view of the schema. Responses: traces, warnings, large results.

use crate::{Error, KEYSPACE, ensure};
use futures::{StreamExt, TryStreamExt};
use scylla::client::Compression;
use scylla::client::caching_session::CachingSessionBuilder;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::speculative_execution::SimpleSpeculativeExecutionPolicy;
use scylla::statement::Consistency;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::unprepared::Statement;
use scylla::value::{Counter, CqlValue};
use scylla::{DeserializeRow, DeserializeValue, SerializeRow, SerializeValue};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, SerializeValue, DeserializeValue)]
struct Place {
    street: String,
    number: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, SerializeRow, DeserializeRow)]
struct Reading {
    sensor: i32,
    taken_at: i64,
    value: Option<f64>,
    tags: Option<BTreeSet<String>>,
    counts: Option<BTreeMap<String, i32>>,
    place: Option<Place>,
    path: Option<Vec<Place>>,
}

impl Reading {
    fn new(sensor: i32, taken_at: i64) -> Reading {
        let place = |number| Place { street: "Main".into(), number };
        Reading {
            sensor,
            taken_at,
            value: (taken_at % 3 != 0).then_some(taken_at as f64 / 2.0),
            tags: Some(["cold".to_owned(), "dry".to_owned()].into()),
            counts: Some([("k".to_owned(), taken_at as i32)].into()),
            place: (taken_at % 2 == 0).then(|| place(Some(7))),
            path: Some(vec![place(None), place(Some(1))]),
        }
    }
}

/// Structs in and out, bound by the names of their fields; rows as a stream over many pages.
pub async fn structs(session: &Session) -> Result<(), Error> {
    session.query_unpaged("CREATE TYPE place (street text, number int)", ()).await?;
    let columns = "sensor int, taken_at bigint, value double, tags set<text>, counts map<text, int>, place frozen<place>, \
                   path list<frozen<place>>, PRIMARY KEY (sensor, taken_at)";
    session.query_unpaged(format!("CREATE TABLE readings ({columns})"), ()).await?;
    let insert = session
        .prepare(
            "INSERT INTO readings (sensor, taken_at, value, tags, counts, place, path) \
             VALUES (:sensor, :taken_at, :value, :tags, :counts, :place, :path)",
        )
        .await?;
    let all: Vec<Reading> = (0..200).map(|at| Reading::new(1, at)).collect();
    for reading in &all {
        session.execute_unpaged(&insert, reading).await?;
    }
    let mut select = session.prepare("SELECT * FROM readings WHERE sensor = ?").await?;
    select.set_page_size(17);
    let rows = session.execute_iter(select.clone(), (1,)).await?.rows_stream::<Reading>()?;
    let seen: Vec<Reading> = rows.try_collect().await?;
    ensure!(seen == all, "{} structs of {} came back", seen.len(), all.len());
    let mut text = Statement::new("SELECT taken_at FROM readings WHERE sensor = 1");
    text.set_page_size(30);
    let mut rows = session.query_iter(text, ()).await?.rows_stream::<(i64,)>()?;
    let mut at = 0;
    while let Some(row) = rows.next().await {
        ensure!(row?.0 == at, "the stream is not at {at}");
        at += 1;
    }
    ensure!(at == 200, "{at} rows of a stream");
    let count = session.query_unpaged("SELECT count(*) FROM readings", ()).await?.into_rows_result()?;
    ensure!(count.single_row::<(i64,)>()?.0 == 200, "count");
    let dynamic = session.query_unpaged("SELECT place, path FROM readings WHERE sensor = 1 AND taken_at = 2", ()).await?;
    let row = dynamic.into_rows_result()?.single_row::<scylla::value::Row>()?;
    ensure!(matches!(row.columns[0], Some(CqlValue::UserDefinedType { .. })), "a row without a type: {row:?}");
    session.query_unpaged("CREATE TABLE vectors (pk int PRIMARY KEY, v vector<float, 3>)", ()).await?;
    let vectors = session.prepare("INSERT INTO vectors (pk, v) VALUES (?, ?)").await?;
    session.execute_unpaged(&vectors, (1, vec![1f32, -2.5, 0.0])).await?;
    let row = session.query_unpaged("SELECT v FROM vectors WHERE pk = 1", ()).await?.into_rows_result()?;
    ensure!(row.single_row::<(Vec<f32>,)>()?.0 == [1.0, -2.5, 0.0], "a vector");
    Ok(())
}

/// Traces, warnings, times of writing, levels and profiles with speculative executions, counters, cached statements.
pub async fn extras(session: &Session, host: &str) -> Result<(), Error> {
    session.query_unpaged("CREATE TABLE extras (pk int PRIMARY KEY, v text)", ()).await?;
    let mut insert = session.prepare("INSERT INTO extras (pk, v) VALUES (?, ?)").await?;
    insert.set_tracing(true);
    insert.set_timestamp(Some(1_234_567));
    let traced = session.execute_unpaged(&insert, (1, "x")).await?;
    let id = traced.tracing_id().ok_or("no id of a trace")?;
    let trace = session.get_tracing_info(&id).await?;
    ensure!(!trace.events.is_empty() && trace.duration.is_some() && trace.coordinator.is_some(), "a trace: {trace:?}");
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.append_statement(Statement::new("INSERT INTO extras (pk, v) VALUES (2, 'y')"));
    batch.set_tracing(true);
    let id = session.batch(&batch, ((),)).await?.tracing_id().ok_or("no id of a batch's trace")?;
    ensure!(!session.get_tracing_info(&id).await?.events.is_empty(), "a batch without events");
    let written = session.query_unpaged("SELECT writetime(v) FROM extras WHERE pk = 1", ()).await?.into_rows_result()?;
    ensure!(written.single_row::<(i64,)>()?.0 == 1_234_567, "time of writing");

    session.query_unpaged("DROP KEYSPACE IF EXISTS rust_warned", ()).await?;
    let replication = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
    let warned = session.query_unpaged(format!("CREATE KEYSPACE rust_warned WITH replication = {replication}"), ()).await?;
    ensure!(warned.warnings().count() > 0, "no warning of the replication factor");
    session.query_unpaged("DROP KEYSPACE rust_warned", ()).await?;

    let eager = SimpleSpeculativeExecutionPolicy { max_retry_count: 2, retry_interval: Duration::from_millis(1) };
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::LocalQuorum)
        .request_timeout(Some(Duration::from_secs(20)))
        .speculative_execution_policy(Some(Arc::new(eager)))
        .build();
    let mut select = session.prepare("SELECT v FROM extras WHERE pk = ?").await?;
    select.set_is_idempotent(true);
    select.set_execution_profile_handle(Some(profile.into_handle()));
    for _ in 0..50 {
        let row = session.execute_unpaged(&select, (1,)).await?.into_rows_result()?;
        ensure!(row.single_row::<(String,)>()?.0 == "x", "read speculatively");
    }

    session.query_unpaged("CREATE TABLE counted (pk int PRIMARY KEY, n counter)", ()).await?;
    let add = session.prepare("UPDATE counted SET n = n + ? WHERE pk = ?").await?;
    for n in 1..=10 {
        session.execute_unpaged(&add, (Counter(n), 1)).await?;
    }
    let mut batch = Batch::new(BatchType::Counter);
    batch.append_statement(add.clone());
    batch.append_statement(add);
    session.batch(&batch, ((Counter(-5), 1), (Counter(7), 2))).await?;
    let counted = session.query_unpaged("SELECT n FROM counted WHERE pk = 1", ()).await?.into_rows_result()?;
    ensure!(counted.single_row::<(Counter,)>()?.0 == Counter(50), "a counter");

    let own = SessionBuilder::new().known_node(host).use_keyspace(KEYSPACE, false).build().await?;
    let cached = CachingSessionBuilder::new(own).max_capacity(3).use_cached_result_metadata(true).build();
    for round in 0..40 {
        let text = format!("SELECT v AS v{} FROM extras WHERE pk = ?", round % 5);
        let row = cached.execute_unpaged(text, (1,)).await?.into_rows_result()?;
        ensure!(row.single_row::<(String,)>()?.0 == "x", "a cached statement");
    }
    Ok(())
}

/// Sessions in other keyspaces and with each compression; a large result through each.
pub async fn keyspaces(session: &Session, host: &str) -> Result<(), Error> {
    let replication = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}";
    session.query_unpaged("DROP KEYSPACE IF EXISTS rust_other", ()).await?;
    session.query_unpaged(format!("CREATE KEYSPACE rust_other WITH replication = {replication}"), ()).await?;
    for (keyspace, value) in [(KEYSPACE, "first"), ("rust_other", "other")] {
        session.query_unpaged(format!("CREATE TABLE {keyspace}.placed (pk int PRIMARY KEY, v text)"), ()).await?;
        let insert = format!("INSERT INTO {keyspace}.placed (pk, v) VALUES (1, '{value}')");
        session.query_unpaged(insert, ()).await?;
    }
    let other = SessionBuilder::new().known_node(host).use_keyspace("rust_other", true).build().await?;
    for (keyspace, value) in [(None, "other"), (Some(KEYSPACE), "first"), (Some("rust_other"), "other")] {
        if let Some(keyspace) = keyspace {
            other.use_keyspace(keyspace, false).await?;
        }
        let row = other.query_unpaged("SELECT v FROM placed WHERE pk = 1", ()).await?.into_rows_result()?;
        ensure!(row.single_row::<(String,)>()?.0 == value, "in the keyspace {keyspace:?}");
    }
    session.query_unpaged("DROP KEYSPACE rust_other", ()).await?;

    session.query_unpaged("CREATE TABLE large (pk int, ck int, v blob, PRIMARY KEY (pk, ck))", ()).await?;
    let value: Vec<u8> = (0..1 << 20).map(|n: u32| (n * 7919 >> 8) as u8).collect();
    for (pk, compression) in [(1, None), (2, Some(Compression::Lz4)), (3, Some(Compression::Snappy))] {
        let session =
            SessionBuilder::new().known_node(host).use_keyspace(KEYSPACE, false).compression(compression).build().await?;
        let insert = session.prepare("INSERT INTO large (pk, ck, v) VALUES (?, ?, ?)").await?;
        for ck in 0..8 {
            session.execute_unpaged(&insert, (pk, ck, &value)).await?;
        }
        let pages = session.query_iter("SELECT v FROM large WHERE pk = ?", (pk,)).await?;
        let seen: Vec<(Vec<u8>,)> = pages.rows_stream()?.try_collect().await?;
        ensure!(seen.len() == 8 && seen.iter().all(|(one,)| *one == value), "large rows, compressed: {compression:?}");
    }
    Ok(())
}

/// What the driver has read of the schema, and that it learns of changes.
pub async fn metadata(session: &Session) -> Result<(), Error> {
    let columns = "a int, b text, c timeuuid, m map<text, frozen<list<int>>>, s set<int> static, PRIMARY KEY ((a, b), c)";
    session.query_unpaged(format!("CREATE TABLE described ({columns})"), ()).await?;
    ensure!(session.check_schema_agreement().await?.is_some(), "no schema agreement");
    session.refresh_metadata().await?;
    let state = session.get_cluster_state();
    let keyspace = state.get_keyspace(KEYSPACE).ok_or("the keyspace is unknown")?;
    ensure!(keyspace.durable_writes && keyspace.tablet_based, "the keyspace: {:?}", keyspace.strategy);
    let table = keyspace.tables.get("described").ok_or("the table is unknown")?;
    ensure!(table.partition_key == ["a", "b"] && table.clustering_key == ["c"], "keys {table:?}");
    ensure!(table.columns.len() == 5, "columns {:?}", table.columns.keys());
    ensure!(keyspace.user_defined_types.contains_key("place"), "types {:?}", keyspace.user_defined_types.keys());
    let node = state.get_nodes_info().first().ok_or("no node")?;
    ensure!(node.datacenter.as_deref() == Some("datacenter1") && node.rack.as_deref() == Some("rack1"), "the node: {node:?}");
    session.query_unpaged("DROP TABLE described", ()).await?;
    session.refresh_metadata().await?;
    let state = session.get_cluster_state();
    let gone = state.get_keyspace(KEYSPACE).is_none_or(|keyspace| !keyspace.tables.contains_key("described"));
    ensure!(gone, "the dropped table is still known");
    Ok(())
}
