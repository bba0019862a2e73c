//! The hot partitions of this node, and the operations of its tablets.

use crate::metadata::ClusterShards;
use model::TableSchema;
use model::id::TableId;
use model::key::split_partition_key;
use model::types::{CqlType, Value};
use replica::hot::Recorded;
use replica::{HotPartition, TabletLoad, TopPartitions};
use rt::time::Duration;

/// The most partitions that a shard lists.
const LISTED: usize = 64;

/// A hot partition, with its names.
#[derive(Clone, PartialEq, Debug)]
pub struct HotView {
    /// Its keyspace.
    pub keyspace: String,
    /// Its table.
    pub table: String,
    /// Its key as CQL literals. None if the key is not known.
    pub key: Option<String>,
    /// The shard.
    pub shard: u16,
    /// Its rates on the shard.
    pub seen: HotPartition,
}

impl HotView {
    /// Operations per second.
    pub fn operations(&self) -> f64 {
        self.seen.reads + self.seen.writes
    }
}

/// The hot partitions of all shards: those with the most of a shard first.
pub async fn partitions(shards: ClusterShards) -> Vec<HotView> {
    let lists = rt::shard::call_all(move || async move { of_shard(shards, LISTED) }).await;
    let mut all: Vec<HotView> = lists.into_iter().flatten().collect();
    let share = |view: &HotView| view.seen.cpu_share;
    all.sort_by(|a, b| share(b).total_cmp(&share(a)).then(b.operations().total_cmp(&a.operations())));
    all
}

/// The hot partitions of this shard.
pub fn of_shard(shards: ClusterShards, most: usize) -> Vec<HotView> {
    let (Some(replica), Some(metadata)) = (shards.replica.try_get(), shards.metadata.try_get()) else {
        return Vec::new();
    };
    let metadata = metadata.current();
    let shard = rt::shard::this().0;
    let named = |seen: HotPartition| {
        let schema = &metadata.table_by_id(seen.id.table)?.schema;
        let key = seen.key.as_deref().map(|key| key_literal(schema, key));
        Some(HotView { keyspace: schema.keyspace.clone(), table: schema.name.clone(), key, shard, seen })
    };
    replica.hot_partitions(most).into_iter().filter_map(named).collect()
}

/// The operations of a tablet, with its names.
#[derive(Clone, PartialEq, Debug)]
pub struct TabletView {
    /// Its keyspace.
    pub keyspace: String,
    /// Its table.
    pub table: String,
    /// The shard.
    pub shard: u16,
    /// Its rates on the shard.
    pub load: TabletLoad,
}

/// The operations of the tablets of all shards.
pub async fn tablets(shards: ClusterShards) -> Vec<TabletView> {
    let lists = rt::shard::call_all(move || async move { tablets_of_shard(shards) }).await;
    lists.into_iter().flatten().collect()
}

fn tablets_of_shard(shards: ClusterShards) -> Vec<TabletView> {
    let (Some(replica), Some(metadata)) = (shards.replica.try_get(), shards.metadata.try_get()) else {
        return Vec::new();
    };
    let metadata = metadata.current();
    let shard = rt::shard::this().0;
    let named = |load: TabletLoad| {
        let schema = &metadata.table_by_id(load.id.table)?.schema;
        Some(TabletView { keyspace: schema.keyspace.clone(), table: schema.name.clone(), shard, load })
    };
    replica.tablet_loads().into_iter().filter_map(named).collect()
}

/// A partition of a recording, with its names.
#[derive(Clone, PartialEq, Debug)]
pub struct TopView {
    /// Its keyspace.
    pub keyspace: String,
    /// Its table.
    pub table: String,
    /// Its key as CQL literals.
    pub key: String,
    /// Its operations, at most.
    pub count: u64,
    /// The part of the count that may belong to other partitions.
    pub error: u64,
}

/// Counts the operations of these tables by partition for some time, on all shards. Returns reads
/// and writes, the most frequent partitions first.
pub async fn record(
    shards: ClusterShards,
    tables: Vec<TableId>,
    capacity: usize,
    duration: Duration,
) -> [Vec<TopView>; 2] {
    let recorded = rt::shard::call_all(move || {
        let tables = tables.clone();
        async move {
            let (Some(replica), Some(metadata)) = (shards.replica.try_get(), shards.metadata.try_get()) else {
                return Default::default();
            };
            let TopPartitions { reads, writes } = replica.top_partitions(tables, capacity, duration).await;
            let metadata = metadata.current();
            let named = |one: Recorded| {
                let schema = &metadata.table_by_id(one.id.table)?.schema;
                let (keyspace, table) = (schema.keyspace.clone(), schema.name.clone());
                let key = key_literal(schema, &one.key);
                Some(TopView { keyspace, table, key, count: one.count, error: one.error })
            };
            [reads, writes].map(|list| list.into_iter().filter_map(&named).collect::<Vec<_>>())
        }
    });
    let mut all = <[Vec<TopView>; 2]>::default();
    for part in recorded.await {
        all.iter_mut().zip(part).for_each(|(all, part)| all.extend(part));
    }
    all.iter_mut().for_each(|list| list.sort_by_key(|one| std::cmp::Reverse(one.count)));
    all
}

/// A partition key as CQL: the literal of its column, or those of its columns in parentheses. Bytes
/// that are no key of the table are shown as a blob.
pub fn key_literal(schema: &TableSchema, key: &[u8]) -> String {
    let types: Vec<_> = schema.partition_key.iter().map(|column| &column.ty).collect();
    let literals = split_partition_key(key, types.len()).and_then(|components| {
        let literal = |(bytes, ty): (&[u8], _)| Some(Value::decode(ty, bytes).ok()?.to_cql_literal(ty));
        components.into_iter().zip(types).map(literal).collect::<Option<Vec<String>>>()
    });
    match literals.as_deref() {
        Some([one]) => one.clone(),
        Some(several) => format!("({})", several.join(", ")),
        None => Value::Blob(key.to_vec()).to_cql_literal(&CqlType::Blob),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{ColumnId, SchemaVersion};
    use model::key::encode_partition_key;
    use model::options::TableOptions;
    use model::schema::{Column, ColumnKind};

    fn schema(types: &[CqlType]) -> TableSchema {
        let column = |(at, ty): (usize, &CqlType)| Column {
            id: ColumnId(0),
            name: format!("k{at}"),
            kind: ColumnKind::PartitionKey,
            position: at as u16,
            ty: ty.clone(),
            descending: false,
        };
        TableSchema::new(
            TableId::from_bytes([1; 16]),
            SchemaVersion::from_bytes([2; 16]),
            "ks",
            "t",
            types.iter().enumerate().map(column).collect(),
            Vec::new(),
            Vec::new(),
            Vec::new(),
            Vec::new(),
            TableOptions::default(),
        )
    }

    #[test]
    fn keys_are_literals_and_never_raw_bytes() {
        let one = schema(&[CqlType::Text]);
        assert_eq!(key_literal(&one, b"it's"), "'it''s'");
        assert_eq!(key_literal(&one, &[0xff, 0xfe]), "0xfffe", "no text");
        let two = schema(&[CqlType::Int, CqlType::Blob]);
        let mut key = Vec::new();
        encode_partition_key(&[&7i32.to_be_bytes(), &[1, 2]], &mut key);
        assert_eq!(key_literal(&two, &key), "(7, 0x0102)");
        assert_eq!(key_literal(&two, b"x"), "0x78", "no key of two columns");
    }
}
