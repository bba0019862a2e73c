//! `SELECT ... FROM MUTATION_FRAGMENTS(table)`: the contents of memtables, row cache and sstables
//! of this node, by source. For debugging.
//!
//! It is a virtual table over a table. The partition key is the table's. The clustering key
//! consists of the source, the region of the partition, the table's clustering columns, and the
//! side of the position. Each row shows one fragment ([`describe`]).
//!
//! Each shard generates the rows of its own partitions through [`LocalSources`], which is set
//! at the node's start. Only data of this node is shown. All rows of an answer are generated before
//! its first page, and each shard is limited to [`MOST_BYTES`].

mod describe;

use crate::error::Error;
use crate::restrictions::Partitions;
use crate::source::{Generated, VirtualRow, VirtualTable};
use bytes::Bytes;
use cluster::MetadataService;
use model::CqlType;
use model::fragment::Fragment;
use model::id::{ColumnId, TableId};
use model::key::{self, DecoratedKey};
use model::range::PartitionRange;
use model::schema::{Column, ColumnKind, TableSchema};
use rt::shard::PerShard;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::rc::Rc;

/// The limit on the rows of one answer on a shard, in bytes.
const MOST_BYTES: usize = 32 << 20;
/// How many keys of a range are read at a time.
const KEYS_AT_ONCE: usize = 1000;

/// Receives a fragment and the name of its source, as shown in `mutation_source`.
pub type Take<'t> = &'t mut dyn FnMut(&str, &Fragment) -> ControlFlow<()>;

/// A read on this shard. Its error is a text for the client.
pub type Local<'s, T> = Pin<Box<dyn Future<Output = Result<T, String>> + 's>>;

/// The data of one shard.
pub trait LocalSources {
    /// The keys of a range in ring order, at most `most`.
    fn keys(&self, table: TableId, range: PartitionRange, most: usize) -> Local<'_, Vec<DecoratedKey>>;
    /// Passes each fragment of a partition with its source to `take`, until `take` breaks. The
    /// fragments of a source are passed together and in order.
    fn read<'s>(&'s self, table: TableId, key: &'s DecoratedKey, take: Take<'s>) -> Local<'s, ()>;
}

/// A service of each shard.
pub struct LocalSourcesService(pub Box<dyn LocalSources>);

/// The virtual table with the fragments of a table.
pub struct FragmentsTable {
    base: Base,
    schema: Rc<TableSchema>,
}

/// What generates the rows of stored tables on every shard.
#[derive(Clone, Copy, Debug)]
pub struct FragmentShards {
    /// The metadata.
    pub metadata: PerShard<MetadataService>,
    /// The data. Without it, there are no rows.
    pub sources: PerShard<LocalSourcesService>,
}

enum Base {
    Stored(TableId, FragmentShards),
    Virtual(Rc<dyn VirtualTable>),
}

impl FragmentsTable {
    /// The fragments of a table. For a virtual table, they are generated from its rows.
    pub fn new(
        shards: FragmentShards,
        table: &TableSchema,
        virtual_table: Option<Rc<dyn VirtualTable>>,
    ) -> FragmentsTable {
        let base = virtual_table.map_or(Base::Stored(table.id, shards), Base::Virtual);
        FragmentsTable { base, schema: Rc::new(schema_of(table)) }
    }
}

impl VirtualTable for FragmentsTable {
    fn schema(&self) -> &Rc<TableSchema> {
        &self.schema
    }

    fn rows<'a>(&'a self, wanted: &'a Partitions) -> Generated<'a> {
        match &self.base {
            Base::Stored(table, shards) => Box::pin(stored_rows(*shards, *table, wanted.clone())),
            Base::Virtual(table) => Box::pin(async move {
                let rows = table.rows(wanted).await?;
                Ok(describe::virtual_rows(table.schema(), rows))
            }),
        }
    }

    fn is_in_order(&self) -> bool {
        true
    }

    fn may_be_large(&self) -> bool {
        true
    }
}

/// The schema, under the table's own keyspace and name, so that the same permissions apply.
fn schema_of(table: &TableSchema) -> TableSchema {
    let clustering = |name: &str, ty| Column {
        id: ColumnId(0),
        name: name.to_owned(),
        kind: ColumnKind::Clustering,
        position: 0,
        ty,
        descending: false,
    };
    let mut key = vec![clustering("mutation_source", CqlType::Text), clustering("partition_region", CqlType::Tinyint)];
    key.extend(table.clustering.iter().cloned());
    key.push(clustering("position_weight", CqlType::Tinyint));
    let regulars = ["metadata", "mutation_fragment_kind", "value"].iter().zip(0..).map(|(name, id)| Column {
        id: ColumnId(id),
        kind: ColumnKind::Regular,
        ..clustering(name, CqlType::Text)
    });
    TableSchema::new(
        table.id,
        table.version,
        &table.keyspace,
        &table.name,
        table.partition_key.clone(),
        key,
        Vec::new(),
        regulars.collect(),
        Vec::new(),
        table.options.clone(),
    )
}

async fn stored_rows(shards: FragmentShards, table: TableId, wanted: Partitions) -> Result<Vec<VirtualRow>, Error> {
    let rows = rt::shard::call_all(move || {
        let wanted = wanted.clone();
        async move { rows_of_shard(shards, table, wanted).await }
    });
    let mut all = Vec::new();
    for rows in rows.await {
        all.append(&mut rows?);
    }
    Ok(all)
}

async fn rows_of_shard(shards: FragmentShards, table: TableId, wanted: Partitions) -> Result<Vec<VirtualRow>, Error> {
    let (Some(service), Some(metadata)) = (shards.sources.try_get(), shards.metadata.try_get()) else {
        return Ok(Vec::new());
    };
    let Some(schema) = metadata.current().table_by_id(table).map(|table| table.schema.clone()) else {
        return Ok(Vec::new());
    };
    let mut making = Making { schema, rows: Vec::new(), bytes: 0 };
    match wanted {
        Partitions::Keys(keys) => {
            for key in &keys {
                making.partition(&*service.0, key).await?;
            }
        }
        Partitions::Range(mut range) => loop {
            let keys = service.0.keys(table, range.clone(), KEYS_AT_ONCE).await.map_err(Error::Server)?;
            for key in &keys {
                making.partition(&*service.0, key).await?;
            }
            match keys.last() {
                Some(last) if keys.len() == KEYS_AT_ONCE => range.start = key::RingCut::after_key(last),
                _ => break,
            }
        },
    }
    Ok(making.rows)
}

struct Making {
    schema: Rc<TableSchema>,
    rows: Vec<VirtualRow>,
    bytes: usize,
}

impl Making {
    /// Adds the rows of a partition, with its sources ordered by name.
    async fn partition(&mut self, sources: &dyn LocalSources, key: &DecoratedKey) -> Result<(), Error> {
        rt::task::maybe_yield().await;
        let mut found: Vec<(String, Vec<VirtualRow>)> = Vec::new();
        let (schema, mut bytes) = (&self.schema, self.bytes);
        let mut take = |source: &str, fragment: &Fragment| {
            let row = describe::row(schema, key, source, fragment);
            bytes += size_of_val(&row[..]) + row.iter().flatten().map(Bytes::len).sum::<usize>();
            match found.last_mut() {
                Some((name, rows)) if name == source => rows.push(row),
                _ => found.push((source.to_owned(), vec![row])),
            }
            if bytes > MOST_BYTES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        sources.read(self.schema.id, key, &mut take).await.map_err(Error::Server)?;
        if bytes > MOST_BYTES {
            let most = MOST_BYTES >> 20;
            return Err(Error::invalid(format!(
                "There are more than {most} MiB of fragments: ask for fewer partitions"
            )));
        }
        self.bytes = bytes;
        found.sort_by(|a, b| a.0.cmp(&b.0));
        self.rows.extend(found.into_iter().flat_map(|(_, rows)| rows));
        Ok(())
    }
}
