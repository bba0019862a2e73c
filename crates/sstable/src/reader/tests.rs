//! What a reader holds between two pages.

use super::*;
use crate::cache::{CachedFile, Kind};
use crate::writer::{Writer, WriterOptions};
use crate::{Generation, PageCache};
use model::key::Clustering;
use model::row::{self, Cell, Marker};
use model::types::CqlType;
use model::{Column, ColumnId, ColumnKind, HostId, SchemaVersion, TableId};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use test_support::Scratch;
use uuid::Uuid;

fn column(name: &str, kind: ColumnKind, ty: CqlType) -> Column {
    Column { id: ColumnId(0), name: name.into(), kind, position: 0, ty, descending: false }
}

fn schema() -> Rc<TableSchema> {
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(1)),
        SchemaVersion(Uuid::from_u128(2)),
        "ks",
        "tbl",
        vec![column("pk", ColumnKind::PartitionKey, CqlType::Int)],
        vec![column("ck", ColumnKind::Clustering, CqlType::Int)],
        vec![],
        vec![column("v", ColumnKind::Regular, CqlType::Blob)],
        vec![],
        Default::default(),
    ))
}

/// Partitions of 100 rows of 700 bytes.
async fn write(dir: &std::path::Path, schema: &Rc<TableSchema>) -> Generation {
    let mut options = WriterOptions::new(HostId(Uuid::from_u128(7)));
    options.promoted_index_block = 4 << 10;
    let generation = Generation::fresh();
    let mut writer = Writer::create(dir, generation, schema.clone(), options).await.expect("created");
    let mut keys: Vec<_> = (0..200i32).map(|pk| DecoratedKey::new(Bytes::copy_from_slice(&pk.to_be_bytes()))).collect();
    keys.sort();
    for key in keys {
        writer.push(Fragment::PartitionStart { key, tombstone: Tombstone::LIVE }).await.expect("written");
        for ck in 0..100i32 {
            let value = [ck as u8; 700];
            let cells = vec![Cell::live(ColumnId(0), 1, &value)];
            let row = row::build(schema, Some(Marker::new(1)), Tombstone::LIVE, cells);
            let key = Clustering::from_components([&ck.to_be_bytes()[..]]);
            writer.push(Fragment::Row { key, row }).await.expect("written");
        }
        writer.push(Fragment::PartitionEnd).await.expect("written");
    }
    writer.finish(&[]).await.expect("finished").expect("not empty");
    generation
}

/// Fills while all pages are cached, which never waits.
fn fill(reader: &mut Reader, out: &mut VecDeque<Fragment>) -> bool {
    let mut fill = pin!(reader.fill(out));
    match fill.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(more) => more.expect("readable"),
        Poll::Pending => panic!("everything is cached"),
    }
}

/// How many of the byte strings that the reader holds are in pages of the cache.
fn held_of_the_cache(reader: &Reader, cached: &CachedFile) -> usize {
    let entries = [&reader.entry, &reader.behind].into_iter().flatten().map(|entry| &entry.key[..]);
    let held = reader.stream.held().chain([reader.index.held()]).chain(entries);
    let held: Vec<_> = held.filter(|bytes| !bytes.is_empty()).map(<[u8]>::as_ptr_range).collect();
    let pages = (0..5_000).flat_map(|n| [Kind::Data, Kind::Index].map(|kind| cached.get(kind, n)));
    let pages: Vec<_> = pages.flatten().collect();
    let is_in =
        |bytes: &std::ops::Range<*const u8>| pages.iter().any(|page| page.as_ptr_range().contains(&bytes.start));
    held.iter().filter(|bytes| is_in(bytes)).count()
}

#[test]
fn a_suspended_reader_holds_no_page_of_the_cache() {
    let scratch = Scratch::new("suspended");
    rt::block_on(async {
        let schema = schema();
        let generation = write(&scratch, &schema).await;
        let cache = PageCache::new(64 << 20);
        let sstable = Sstable::open(&scratch, generation, &cache).await.expect("opens");
        let mut seen_holding = 0;
        for reversed in [false, true] {
            let slice = Rc::new(Slice { reversed, ..Slice::full() });
            let reader = || sstable.reader(&schema, PartitionRange::FULL, slice.clone(), ReadOptions::POINT);
            let (mut wanted, mut first) = (VecDeque::new(), reader());
            while first.fill(&mut wanted).await.expect("readable") {}
            let (mut out, mut second) = (VecDeque::new(), reader());
            while fill(&mut second, &mut out) {
                seen_holding += held_of_the_cache(&second, &sstable.cached);
                second.suspend();
                assert_eq!(held_of_the_cache(&second, &sstable.cached), 0);
            }
            assert!(out.iter().eq(&wanted), "suspending changes nothing");
        }
        assert!(seen_holding > 100, "{seen_holding}");
    });
}
