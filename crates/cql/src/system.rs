//! The system tables: virtual tables, generated when they are read.
//!
//! Each table has an ordinary schema, defined by a CREATE TABLE in [`tables`], and a generator that
//! fills [`Rows`] with values of [`cluster::observe`]. The planner reads it as a [`VirtualTable`].
//! None of the tables can be written, except for settings in `system.config` ([`config`]).
//!
//! `system_schema` lists the keyspaces `system` and `system_schema` too. `system_virtual_schema`
//! lists only itself, so that no table is listed twice.

mod clients;
mod compactions;
pub mod config;
mod hot;
mod large;
mod numbers;
mod peers;
mod ring;
mod rows;
mod schema_tables;
mod sizes;
mod status;
mod tables;
#[cfg(test)]
mod tests;
mod topology;

pub use clients::{ClientInfo, ClientList, Encryption};
pub use config::{Setting, SettingRefused, Settings, SettingsTable};
pub use ring::tokens_of;

use crate::api::Consistency;
use crate::error::{Error, WriteType};
use crate::restrictions::Partitions;
use crate::source::{Generated, VirtualTable};
use cluster::ClusterShards;
use cluster::metadata::{Keyspace, Metadata, NodeInfo};
use cluster::observe::{self, Member};
use model::TableSchema;
use rows::Rows;
use rt::shard::PerShard;
use rt::sync::Semaphore;
use std::cell::OnceCell;
use std::rc::Rc;

/// The keyspaces of virtual tables.
pub const KEYSPACES: [&str; 3] = ["system", "system_schema", VIRTUAL_SCHEMA];

/// The keyspace that lists only itself.
const VIRTUAL_SCHEMA: &str = "system_virtual_schema";

/// The CQL version that is reported to clients.
pub const CQL_VERSION: &str = "3.4.5";

/// The partitioner of every table.
pub const PARTITIONER: &str = "org.apache.cassandra.dht.Murmur3Partitioner";

/// A system table.
struct SystemTable {
    schema: Rc<TableSchema>,
    generator: Generator,
    /// The system keyspaces.
    system: Rc<Metadata>,
    cluster: ClusterShards,
    shards: SystemShards,
}

/// The data that the server passes to system tables on every shard. Without a service, its tables
/// are empty. Everything else they get from [`cluster::observe`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemShards {
    /// The connections of clients.
    pub clients: PerShard<ClientList>,
    /// The settings.
    pub settings: PerShard<SettingsTable>,
    /// Held while a setting is changed on all shards. On shard 0.
    setting_turn: PerShard<Semaphore>,
}

impl VirtualTable for SystemTable {
    fn schema(&self) -> &Rc<TableSchema> {
        &self.schema
    }

    fn rows<'a>(&'a self, _: &'a Partitions) -> Generated<'a> {
        Box::pin(async move {
            let (known, mut rows) = (self.known(), Rows::new(self.schema.clone()));
            self.generator.fill(&known, &mut rows).await;
            Ok(rows.finish())
        })
    }
}

impl SystemTable {
    /// The current state on this shard.
    fn known(&self) -> Knowledge {
        let service = self.cluster.metadata.get();
        Knowledge {
            metadata: service.current(),
            node: service.info().clone(),
            system: self.system.clone(),
            cluster: self.cluster,
            shards: self.shards,
        }
    }
}

/// The generator of a virtual table, with the source of its rows.
#[derive(Clone, Copy)]
enum Generator {
    /// The metadata and the node, which every shard knows.
    Known(fn(&Knowledge, &mut Rows)),
    /// The connections of all shards.
    Clients,
    /// The cluster's members, and the data of all shards.
    ClusterStatus,
    /// The compactions of all shards.
    Compactions,
    /// The hot partitions of all shards.
    HotPartitions,
    TabletLoads,
    /// The large data in the sstables of all shards.
    Large(large::Kind),
    /// The data of all shards.
    Sizes,
    /// The snapshots on disk.
    Snapshots,
    /// The tablets of all shards.
    TabletSizes,
    /// The tablets of all shards, summed by node.
    LoadPerNode,
    /// Counters of all shards.
    RuntimeInfo,
}

impl Generator {
    async fn fill(self, known: &Knowledge, rows: &mut Rows) {
        match self {
            Generator::Known(fill) => fill(known, rows),
            Generator::Clients => clients::fill(known, rows).await,
            Generator::ClusterStatus => peers::cluster_status(known, rows).await,
            Generator::Compactions => compactions::fill(known, rows).await,
            Generator::HotPartitions => hot::fill(known, rows).await,
            Generator::Large(kind) => large::fill(kind, known, rows).await,
            Generator::Sizes => sizes::fill(known, rows).await,
            Generator::Snapshots => numbers::snapshots(known, rows).await,
            Generator::TabletLoads => hot::tablet_loads(known, rows).await,
            Generator::TabletSizes => numbers::tablet_sizes(known, rows).await,
            Generator::LoadPerNode => numbers::load_per_node(known, rows).await,
            Generator::RuntimeInfo => {
                status::runtime_info(known, rows);
                numbers::runtime(known, rows).await;
            }
        }
    }
}

/// The inputs of generators.
struct Knowledge {
    /// The schema and the tablets.
    metadata: Rc<Metadata>,
    /// This node.
    node: Rc<NodeInfo>,
    /// The system keyspaces.
    system: Rc<Metadata>,
    cluster: ClusterShards,
    shards: SystemShards,
}

impl Knowledge {
    /// All keyspaces that `system_schema` lists, including system keyspaces.
    fn keyspaces(&self) -> impl Iterator<Item = &Rc<Keyspace>> {
        let own = self.system.keyspaces.values().filter(|keyspace| keyspace.definition.name != VIRTUAL_SCHEMA);
        self.metadata.keyspaces.values().chain(own)
    }

    /// The keyspaces that `system_virtual_schema` lists.
    fn virtual_keyspaces(&self) -> impl Iterator<Item = &Rc<Keyspace>> {
        self.system.keyspaces.values().filter(|keyspace| keyspace.definition.name == VIRTUAL_SCHEMA)
    }
}

/// The cluster's members, with their shares of the data.
async fn members(known: &Knowledge) -> Vec<Member> {
    observe::members::members(&known.metadata, &known.node, known.cluster).await
}

/// The system tables of a shard, built at first use.
pub struct SystemTables {
    cluster: ClusterShards,
    shards: SystemShards,
    built: OnceCell<Registry>,
}

struct Registry {
    metadata: Rc<Metadata>,
    tables: Vec<Rc<SystemTable>>,
}

impl SystemTables {
    /// The tables of a node with these services.
    pub fn new(cluster: ClusterShards, shards: SystemShards) -> SystemTables {
        SystemTables { cluster, shards, built: OnceCell::new() }
    }

    /// The sources of the tables on every shard.
    pub fn shards(&self) -> SystemShards {
        self.shards
    }

    /// The virtual table with this name.
    pub fn table(&self, keyspace: &str, name: &str) -> Option<Rc<dyn VirtualTable>> {
        if !is_virtual(keyspace) {
            return None;
        }
        let mut tables = self.registry().tables.iter();
        let found = tables.find(|table| table.schema.name == name && table.schema.keyspace == keyspace);
        found.map(|table| table.clone() as Rc<dyn VirtualTable>)
    }

    /// The virtual keyspaces with their tables, for DESCRIBE and `system_schema`.
    pub fn keyspaces(&self) -> Rc<Metadata> {
        self.registry().metadata.clone()
    }

    fn registry(&self) -> &Registry {
        self.built.get_or_init(|| {
            let (metadata, generators) = tables::build();
            let (cluster, shards, metadata) = (self.cluster, self.shards, Rc::new(metadata));
            let tables = generators
                .into_iter()
                .map(|(keyspace, name, generator)| {
                    let table = metadata.table(keyspace, &name).expect("a virtual table is in the metadata");
                    let (schema, system) = (table.schema.clone(), metadata.clone());
                    Rc::new(SystemTable { schema, generator, system, cluster, shards })
                })
                .collect();
            Registry { metadata, tables }
        })
    }
}

/// Whether the keyspace has virtual tables.
pub fn is_virtual(keyspace: &str) -> bool {
    KEYSPACES.contains(&keyspace)
}

/// The error for a failed write to a virtual table. To clients, this node is its only replica.
fn write_failure(schema: &TableSchema, consistency: Consistency, why: &str) -> Error {
    Error::WriteFailure {
        target: format!("{}.{}", schema.keyspace, schema.name),
        consistency,
        received: 0,
        required: 1,
        failures: 1,
        nodes: Vec::new(),
        kind: WriteType::Simple,
        why: why.to_owned(),
    }
}

/// The error for writes to virtual tables, and for batches with such writes. The text is
/// ScyllaDB's.
pub fn not_writable(schema: &TableSchema, consistency: Consistency) -> Error {
    write_failure(schema, consistency, "this virtual table doesn't allow updates")
}
