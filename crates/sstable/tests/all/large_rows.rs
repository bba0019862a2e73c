//! Rows of megabytes: how much of them readers and writers hold in memory, and that they are read
//! as they were written.

use model::fragment::Fragment;
use model::key::{Clustering, DecoratedKey};
use model::range::{PartitionRange, Slice};
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{Column, ColumnKind};
use model::time::Tombstone;
use model::types::CqlType;
use model::{ColumnId, HostId, SchemaVersion, TableId, TableSchema};
use sstable::{Generation, OpenFiles, PageCache, ReadOptions, Sstable, Writer, WriterOptions};
use std::collections::VecDeque;
use std::rc::Rc;
use test_support::Scratch;
use uuid::Uuid;

const ROW: usize = 3 << 20;
const BUDGET: usize = 64 << 20;

/// `t (k int, c int, v blob, s blob static, primary key (k, c))`.
fn schema() -> Rc<TableSchema> {
    let column = |id, name: &str, kind, ty| Column { id, name: name.into(), kind, position: 0, ty, descending: false };
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(1)),
        SchemaVersion(Uuid::from_u128(2)),
        "ks",
        "t",
        vec![column(ColumnId(0), "k", ColumnKind::PartitionKey, CqlType::Int)],
        vec![column(ColumnId(0), "c", ColumnKind::Clustering, CqlType::Int)],
        vec![column(ColumnId(1), "s", ColumnKind::Static, CqlType::Blob)],
        vec![column(ColumnId(0), "v", ColumnKind::Regular, CqlType::Blob)],
        Vec::new(),
        Default::default(),
    ))
}

/// Bytes that hardly compress.
fn value(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(next).collect()
}

/// Partitions in token order. Each has a large static row, a small row and two large rows.
fn contents() -> Vec<Fragment> {
    let row = |column, bytes: &[u8]| {
        let mut row = RowBuilder::new(Some(Marker::new(1)), Tombstone::LIVE);
        row.push(&Cell::live(ColumnId(column), 1, bytes));
        row.finish()
    };
    let mut keys: Vec<_> = (0..3i32).map(|n| DecoratedKey::new(n.to_be_bytes().to_vec().into())).collect();
    keys.sort();
    let mut fragments = Vec::new();
    for (n, key) in keys.into_iter().enumerate() {
        fragments.push(Fragment::PartitionStart { key, tombstone: Tombstone::LIVE });
        fragments.push(Fragment::Static(row(1, &value(n as u32, ROW))));
        for (c, len) in [(0, 10), (1, ROW), (2, ROW + 1)] {
            let key = Clustering::from_components([&(c as i32).to_be_bytes()[..]]);
            fragments.push(Fragment::Row { key, row: row(0, &value(100 + c, len)) });
        }
        fragments.push(Fragment::PartitionEnd);
    }
    fragments
}

#[test]
fn a_merge_holds_a_large_row_only_when_it_comes_to_it() {
    let scratch = Scratch::new("large-rows");
    rt::block_on(async {
        let generation = Generation::fresh();
        let options = WriterOptions::new(HostId(Uuid::from_u128(7)));
        let mut writer = Writer::create(&scratch, generation, schema(), options).await.expect("created");
        for fragment in contents() {
            writer.push(fragment).await.expect("written");
        }
        writer.finish(&[]).await.expect("finished").expect("not empty");
        let cache = PageCache::with_large_budgets(BUDGET, OpenFiles::new(10), BUDGET, BUDGET);
        let sstable = Sstable::open(&scratch, generation, &cache).await.expect("opened");
        let jobs = cache.large_jobs().clone();
        let options = ReadOptions { job: jobs.next_id(None), ..ReadOptions::BACKGROUND };
        let mut reader = sstable.reader(&schema(), PartitionRange::FULL, Rc::new(Slice::full()), options);
        let (mut all, mut more) = (Vec::new(), true);
        while more {
            let mut out = VecDeque::new();
            reader.large_is_done();
            more = reader.fill(&mut out).await.expect("readable");
            let large = out.iter().filter(|fragment| fragment.weight() >= ROW).count();
            assert!(large <= 1, "{large} at once");
            // The row in its stored form and as output; nothing while what came before it is
            // output.
            let most = large * (2 * ROW + (1 << 10));
            assert!((large * 2 * ROW..=most).contains(&jobs.used()), "{} for {large}", jobs.used());
            assert_eq!(cache.lent(), jobs.used());
            assert!(reader.memory_bytes() < 3 << 20, "its window is given back: {}", reader.memory_bytes());
            all.extend(out);
        }
        assert_eq!(all.len(), contents().len());
        assert!(all == contents(), "the written rows are read");
        drop(reader);
        assert_eq!((jobs.used(), cache.lent()), (0, 0));
    });
}

#[test]
fn the_cache_does_without_what_large_reads_hold() {
    let scratch = Scratch::new("large-lent");
    rt::block_on(async {
        let generation = Generation::fresh();
        let options = WriterOptions::new(HostId(Uuid::from_u128(7)));
        let mut writer = Writer::create(&scratch, generation, schema(), options).await.expect("created");
        for fragment in contents() {
            writer.push(fragment).await.expect("written");
        }
        writer.finish(&[]).await.expect("finished").expect("not empty");
        let cache = PageCache::with_large_budgets(4 << 20, OpenFiles::new(10), BUDGET, BUDGET);
        let sstable = Sstable::open(&scratch, generation, &cache).await.expect("opened");
        let read = async || {
            let mut reader =
                sstable.reader(&schema(), PartitionRange::FULL, Rc::new(Slice::full()), ReadOptions::POINT);
            let mut out = VecDeque::new();
            while reader.fill(&mut out).await.expect("readable") {}
        };
        read().await;
        assert!(cache.stats().bytes > 3 << 20, "full: {}", cache.stats().bytes);
        let held = cache.large_reads().enter(cache.large_reads().next_id(None), 2 << 20).await;
        assert!(cache.stats().bytes <= 2 << 20, "{}", cache.stats().bytes);
        read().await;
        assert!(cache.stats().bytes <= 2 << 20, "{}", cache.stats().bytes);
        let more = cache.lend(100 << 20);
        assert!(cache.stats().bytes <= 512 << 10, "an eighth stays: {}", cache.stats().bytes);
        drop((held, more));
        read().await;
        assert!(cache.stats().bytes > 3 << 20, "full again: {}", cache.stats().bytes);
        // Free memory is lent first.
        cache.set_spare(Box::new(|| 2 << 20));
        let _held = cache.large_reads().enter(cache.large_reads().next_id(None), 3 << 20).await;
        assert!((2 << 20..=3 << 20).contains(&cache.stats().bytes), "{}", cache.stats().bytes);
    });
}
