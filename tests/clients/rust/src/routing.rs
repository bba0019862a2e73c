//! Shard and tablet awareness: after the first prepared request to each tablet, no request hops between shards.
//!
//! The driver learns a tablet's owner from the payload of an answer to a request that came to the wrong shard. So one
//! pass over the keys may hop, at most once per tablet and statement; the passes after it must not hop at all.

use crate::{Error, KEYSPACE, ensure};
use scylla::client::PoolSize;
use scylla::client::session_builder::SessionBuilder;
use std::num::NonZeroUsize;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Counts the requests for data that a shard sent to another shard of the same node.
const HOPS: &str = "scylla_storage_proxy_replica_cross_shard_ops";
const KEYS: i64 = 2000;

async fn hops(address: &str) -> Result<f64, Error> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let lines = answer.lines().filter(|line| line.strip_prefix(HOPS).is_some_and(|rest| rest.starts_with(['{', ' '])));
    let values: Vec<f64> = lines.map(|line| line.rsplit(' ').next().unwrap_or("").parse()).collect::<Result<_, _>>()?;
    ensure!(!values.is_empty(), "no metric {HOPS} at {address}");
    Ok(values.iter().sum())
}

pub async fn no_hops(host: &str, metrics: &str) -> Result<(), Error> {
    let session = SessionBuilder::new()
        .known_node(host)
        .pool_size(PoolSize::PerShard(NonZeroUsize::MIN))
        .use_keyspace(KEYSPACE, false)
        .build()
        .await?;
    let state = session.get_cluster_state();
    let node = state.get_nodes_info().first().ok_or("no node known")?;
    let sharder = node.sharder().ok_or("the node does not announce its shards")?;
    ensure!(sharder.nr_shards.get() > 1, "the check needs a node with several shards");
    session.query_unpaged("CREATE TABLE IF NOT EXISTS routed (pk bigint PRIMARY KEY, v blob)", ()).await?;
    session.await_schema_agreement().await?;
    session.refresh_metadata().await?;
    let insert = session.prepare("INSERT INTO routed (pk, v) VALUES (?, ?)").await?;
    let select = session.prepare("SELECT v FROM routed WHERE pk = ?").await?;
    let mut before = hops(metrics).await?;
    let mut seen = vec![];
    for pass in 0..4 {
        for pk in 0..KEYS {
            session.execute_unpaged(&insert, (pk, vec![pass as u8; 32])).await?;
            let result = session.execute_unpaged(&select, (pk,)).await?.into_rows_result()?;
            let (v,) = result.single_row::<(Vec<u8>,)>()?;
            ensure!(v == vec![pass as u8; 32], "key {pk}: wrong value in pass {pass}");
        }
        // The driver takes in what it learned about tablets in the background.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = hops(metrics).await?;
        seen.push(now - before);
        before = now;
    }
    ensure!(seen[1..].iter().all(|hops| *hops == 0.0), "hops in each pass over {KEYS} keys: {seen:?}");
    Ok(())
}
