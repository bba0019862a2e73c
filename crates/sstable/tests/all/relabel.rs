//! An sstable moved to another level: only the level differs, it is protected as any, and its data
//! is not written again.

use crate::random;

use model::fragment::Fragment;
use model::range::{PartitionRange, Slice};
use model::{HostId, TableSchema};
use random::Size;
use sstable::{Component, Generation, PageCache, ReadOptions, Sstable, Writer, WriterOptions};
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use uuid::Uuid;

async fn all(sstable: &Rc<Sstable>, schema: &Rc<TableSchema>) -> Vec<Fragment> {
    let slice = Rc::new(Slice::full());
    let mut reader = sstable.reader(schema, PartitionRange::FULL, slice, ReadOptions::SCAN);
    let mut out = VecDeque::new();
    while reader.fill(&mut out).await.expect("readable") {}
    out.into()
}

#[test]
fn a_relabeled_sstable_is_the_same_on_another_level() {
    let dir = test_support::Scratch::new("sstable-relabel");
    rt::block_on(async {
        for (seed, is_compressed) in [(1, true), (2, false)] {
            let rng = &mut random::rng(seed);
            let schema = random::schema(rng, 4);
            let mut options = WriterOptions { level: 2, ..WriterOptions::new(HostId(Uuid::from_u128(7))) };
            if !is_compressed {
                options.compression = None;
            }
            let mut writer = Writer::create(&dir, Generation::fresh(), schema.clone(), options).await.expect("created");
            for fragment in random::stream(rng, &schema, Size { partitions: 8, rows: 12, value: 20 }) {
                writer.push(fragment).await.expect("written");
            }
            let sealed = writer.finish(&[]).await.expect("finished").expect("not empty");
            let cache = PageCache::new(1 << 20);
            let old = Sstable::open(&dir, sealed.generation, &cache).await.expect("opens");
            assert!(old.is_protected());
            let before = all(&old, &schema).await;

            let fresh = Generation::fresh();
            let unsealed = old.relabeled(fresh, 3).await.expect("relabeled");
            assert!(Sstable::open(&dir, fresh, &cache).await.is_err(), "it is not there before it is sealed");
            unsealed.seal().await.expect("sealed");
            let new = Sstable::open(&dir, fresh, &cache).await.expect("opens");
            let links = std::fs::metadata(new.place().path(Component::Data)).expect("there").nlink();
            assert_eq!(links, 2, "the data has two names");
            let mut stats = new.stats().clone();
            assert_eq!(stats.level, 3);
            stats.level = 2;
            assert_eq!((&stats, new.first_key(), new.last_key()), (old.stats(), old.first_key(), old.last_key()));
            assert_eq!(new.total_bytes(), old.total_bytes());

            sstable::directory::remove(old.place()).await.expect("removed");
            drop(old);
            assert_eq!(all(&new, &schema).await, before);
            assert!(new.verify(|_| {}).await.expect("sound").all_protected);
        }
    });
}
