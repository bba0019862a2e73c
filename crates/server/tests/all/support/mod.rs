//! A node alone in this process, without ports: starting it, asking it, ending it.

use cql::api::{ClientState, QueryParams, ResultKind};
use rt::{Machine, MachineConfig, ShardId};
use server::stack::{self, Layers, StackConfig};
use std::net::Ipv4Addr;
use std::path::Path;
use std::rc::Rc;
use std::sync::LazyLock;

pub use test_support::Scratch;

/// The layers of every shard of every node.
pub static LAYERS: LazyLock<Layers> = LazyLock::new(Layers::default);

pub fn config(path: &Path, accept_loss: bool) -> StackConfig {
    StackConfig {
        segment_size: 128 << 10,
        log_size_limit: 2 << 20,
        accept_loss,
        ignore_log_corruption: accept_loss,
        auto_compaction: false,
        ..StackConfig::new(path, "missing", Ipv4Addr::LOCALHOST.into(), 16 << 20)
    }
}

/// Starts a node alone, runs `work` on it, and ends it: with a stop if `stops`, else as by a kill.
pub fn live<T: Send + 'static, F: Future<Output = T> + 'static>(
    path: &Path,
    accept_loss: bool,
    stops: bool,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<T, String> {
    live_with(config(path, accept_loss), 1, stops, work)
}

/// Like [`live`], with another configuration or several shards.
pub fn live_with<T: Send + 'static, F: Future<Output = T> + 'static>(
    config: StackConfig,
    shards: usize,
    stops: bool,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<T, String> {
    let machine = MachineConfig { shards, overprovisioned: true, ..MachineConfig::default() };
    let machine = Machine::start(machine, |_| async { rt::shard::stopping().cancelled().await }).expect("it starts");
    let remote = machine.remote();
    let done = rt::block_on(async {
        let done = remote.call(ShardId(0), move || async move {
            let stack = stack::start(*LAYERS, config).await.map_err(|error| error.to_string())?;
            let done = work().await;
            if stops {
                stack::stop(*LAYERS).await.map_err(|error| error.to_string())?;
            }
            drop(stack);
            Ok(done)
        });
        done.await.expect("it runs")
    });
    machine.stop();
    machine.join();
    done
}

pub async fn ask(text: &str) -> Result<ResultKind, String> {
    let client = Rc::new(ClientState {
        keyspace: Default::default(),
        role: Default::default(),
        address: None,
        tablets_routing: Default::default(),
        cancel: rt::sync::Cancel::new(),
        identity: Default::default(),
    });
    let answer = LAYERS.processor.get().query(&client, text, &QueryParams::default()).await;
    answer.map(|answer| answer.kind).map_err(|error| format!("{text}: {error}"))
}

/// The keys of a table with an int key, sorted.
pub async fn keys(table: &str) -> Vec<i32> {
    let ResultKind::Rows(rows) = ask(&format!("SELECT k FROM {table}")).await.expect("it can be read") else {
        panic!("no rows of {table}");
    };
    let mut keys: Vec<i32> =
        rows.body.chunks(8).map(|row| i32::from_be_bytes(row[4..].try_into().expect("an int"))).collect();
    keys.sort();
    keys
}
