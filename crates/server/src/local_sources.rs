//! The contents of each source of this shard's engine, for
//! `SELECT ... FROM MUTATION_FRAGMENTS(table)`.

use cql::fragments::{Local, LocalSources, LocalSourcesService, Take};
use engine::{Engine, Origin};
use model::fragment::Fragment;
use model::id::TableId;
use model::key::DecoratedKey;
use model::range::PartitionRange;
use std::rc::Rc;

struct OfEngine(Rc<Engine>);

/// The service of a shard.
pub(crate) fn service(engine: Rc<Engine>) -> Rc<LocalSourcesService> {
    Rc::new(LocalSourcesService(Box::new(OfEngine(engine))))
}

impl LocalSources for OfEngine {
    fn keys(&self, table: TableId, range: PartitionRange, most: usize) -> Local<'_, Vec<DecoratedKey>> {
        Box::pin(async move { self.0.keys(table, range, most).await.map_err(|error| error.to_string()) })
    }

    fn read<'s>(&'s self, table: TableId, key: &'s DecoratedKey, take: Take<'s>) -> Local<'s, ()> {
        Box::pin(async move {
            let mut take = |origin: &Origin, fragment: &Fragment| take(&name(origin), fragment);
            self.0.dump_sources(table, key, &mut take).await.map_err(|error| error.to_string())
        })
    }
}

/// A source's name, as ScyllaDB writes it.
fn name(origin: &Origin) -> String {
    match origin {
        Origin::Memtable(number) => format!("memtable:{number}"),
        Origin::RowCache => "row-cache".to_owned(),
        Origin::Sstable(path) => format!("sstable:{}", path.display()),
    }
}
