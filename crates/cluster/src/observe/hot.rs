//! The hot partitions of this node, and the operations of its tablets.

use crate::metadata::ClusterShards;
use model::TableSchema;
use model::id::TableId;
use model::key::split_partition_key;
use model::types::{CqlNotation, CqlType, Value, push_text, shown_limit};
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
    /// Its key as CQL literals. None if the key is too long to be kept.
    pub key: Option<String>,
    /// Its token.
    pub token: i64,
    /// Its operations, at most.
    pub count: u64,
    /// The part of the count that may belong to other partitions.
    pub error: u64,
}

/// The counts of a recording for one kind of operation.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct TopOfKind {
    /// How many partitions were counted.
    pub partitions: usize,
    /// The most frequent ones, in that order.
    pub top: Vec<TopView>,
}

/// What to record.
#[derive(Clone, Debug)]
pub struct RecordingRequest {
    /// The tables.
    pub tables: Vec<TableId>,
    /// About how many partitions are counted at once on each shard.
    pub capacity: usize,
    /// For how long.
    pub duration: Duration,
    /// The most partitions of each kind that are returned.
    pub list_size: usize,
}

/// Counts the operations of tables by partition for some time, on all shards. Returns reads and
/// writes. `None` if too many recordings run on this node already. On shard 0, which admits the
/// recordings of the node.
pub async fn record(shards: ClusterShards, request: RecordingRequest) -> Option<[TopOfKind; 2]> {
    let _permit = match shards.replica.try_get() {
        Some(replica) => Some(replica.admit_recording()?),
        None => None,
    };
    let list_size = request.list_size;
    let recorded = rt::shard::call_all(move || record_shard(shards, request.clone()));
    let mut all = <[TopOfKind; 2]>::default();
    for part in recorded.await {
        for (all, part) in all.iter_mut().zip(part) {
            all.partitions += part.partitions;
            all.top.extend(part.top);
            all.top.sort_by_key(|one| std::cmp::Reverse(one.count));
            all.top.truncate(list_size);
        }
        rt::task::maybe_yield().await;
    }
    Some(all)
}

/// Counts the operations of this shard.
async fn record_shard(shards: ClusterShards, request: RecordingRequest) -> [TopOfKind; 2] {
    let (Some(replica), Some(metadata)) = (shards.replica.try_get(), shards.metadata.try_get()) else {
        return Default::default();
    };
    let TopPartitions { reads, writes } =
        replica.top_partitions(request.tables, request.capacity, request.duration).await;
    let metadata = metadata.current();
    let mut all = <[TopOfKind; 2]>::default();
    for (kind, recorded) in all.iter_mut().zip([reads, writes]) {
        kind.partitions = recorded.len();
        for one in recorded {
            if kind.top.len() >= request.list_size {
                break;
            }
            let Some(table) = metadata.table_by_id(one.id.table) else { continue };
            kind.top.push(top_view(&table.schema, one));
            rt::task::maybe_yield().await;
        }
    }
    all
}

fn top_view(schema: &TableSchema, recorded: Recorded) -> TopView {
    let Recorded { id, key, count, error } = recorded;
    let key = key.map(|key| key_literal(schema, &key));
    TopView { keyspace: schema.keyspace.clone(), table: schema.name.clone(), key, token: id.token.0, count, error }
}

/// The most bytes of the literal of a short partition key.
const SHORT_LITERAL: usize = 4 << 10;

/// A partition key as CQL: the literal of its column, or the literals of its columns in
/// parentheses. Bytes that are no key of the table are shown as a blob. So is a key whose literal
/// is much longer than the key.
pub fn key_literal(schema: &TableSchema, key: &[u8]) -> String {
    let types: Vec<_> = schema.partition_key.iter().map(|column| &column.ty).collect();
    let literals = split_partition_key(key, types.len()).and_then(|components| {
        let literal = |(bytes, ty): (&[u8], _)| {
            let (mut out, limit) = (String::new(), shown_limit(bytes.len(), SHORT_LITERAL));
            push_text(CqlNotation, ty, Some(bytes), limit, &mut out).ok()?;
            Some(out)
        };
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
    use model::types::UserType;
    use model::types::collection::build_list;

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

    #[test]
    fn the_literal_of_a_key_is_not_much_longer_than_the_key() {
        let fields = (0..4_000).map(|n| (format!("f{n}"), CqlType::Int)).collect();
        let wide = CqlType::udt(UserType { keyspace: "ks".into(), name: "wide".into(), fields, frozen: true });
        let schema = schema(&[CqlType::list(wide).freeze()]);
        let key = build_list(vec![[0xffu8; 4]; 8_000]);
        let literal = key_literal(&schema, &key);
        assert!(literal.starts_with("0x00001f40"), "{}", &literal[..40]);
        assert_eq!(literal.len(), 2 + 2 * key.len());
    }
}
