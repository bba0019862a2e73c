//! What is kept for a replica that is away: bounds, damage, order, and what becomes of it.

use super::*;
use model::id::{SchemaVersion, TableId};
use model::mutation::MutationBuilder;
use model::options::TableOptions;
use model::schema::{Column, ColumnKind, TableSchema};
use model::time::Tombstone;
use model::types::CqlType;

/// A mutation of the partition of this number.
pub(super) fn mutation(n: i32) -> Mutation {
    let (table, version) = (TableId(Uuid::from_u128(7)), SchemaVersion(Uuid::from_u128(1)));
    let key = Column {
        id: model::ColumnId(0),
        name: "k".into(),
        kind: ColumnKind::PartitionKey,
        position: 0,
        ty: CqlType::Int,
        descending: false,
    };
    let options = TableOptions::default();
    let schema =
        TableSchema::new(table, version, "ks", "t", vec![key], Vec::new(), Vec::new(), Vec::new(), Vec::new(), options);
    let mut builder = MutationBuilder::new(table, version, &n.to_be_bytes());
    builder.delete_partition(Tombstone::new(i64::from(n), n));
    builder.finish(&schema)
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("messina-hints-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory");
        Scratch(path)
    }

    fn config(&self) -> HintsConfig {
        HintsConfig {
            file_bytes: 500,
            settings: HintsSettings { throttle: 0, ..HintsSettings::default() },
            ..HintsConfig::new(self.0.clone(), 1 << 20)
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn target() -> HostId {
    HostId(Uuid::from_u128(2))
}

async fn fill(hints: &Hints, count: i32) {
    for n in 0..count {
        hints.store(target(), &mutation(n), 1, None).await.expect("there is room");
    }
}

/// What is delivered while `accept` says so.
async fn replay(hints: &Hints, accept: impl Fn(usize) -> Delivered) -> (bool, Vec<Mutation>) {
    let seen = RefCell::new(Vec::new());
    let done = hints
        .replay(target(), |hint| {
            seen.borrow_mut().push(hint.mutation);
            let outcome = accept(seen.borrow().len());
            async move { outcome }
        })
        .await
        .expect("the disk works");
    (done, seen.into_inner())
}

#[test]
fn hints_are_delivered_in_order_and_then_gone() {
    rt::block_on(async {
        let scratch = Scratch::new("order");
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        fill(&hints, 20).await;
        assert_eq!(hints.targets(), [target()]);
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert!(done);
        assert_eq!(seen, (0..20).map(mutation).collect::<Vec<_>>());
        assert_eq!(hints.metrics(), HintsMetrics { written: 20, sent: 20, ..HintsMetrics::default() });
        assert!(hints.targets().is_empty());
        let left = std::fs::read_dir(scratch.0.join("0").join(target().to_string())).expect("a directory").count();
        assert_eq!(left, 0, "no file is left");
    });
}

#[test]
fn what_cannot_be_delivered_stays_also_over_a_restart() {
    rt::block_on(async {
        let scratch = Scratch::new("stays");
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        fill(&hints, 20).await;
        let bytes = hints.metrics().bytes;
        let (done, _) = replay(&hints, |_| Delivered::NotYet).await;
        assert!(!done);
        assert_eq!((hints.metrics().bytes, hints.metrics().sent), (bytes, 0));
        drop(hints);
        // Two shards less: shard 0 takes over what the others left.
        std::fs::rename(scratch.0.join("0"), scratch.0.join("2")).expect("renamed");
        let hints = Hints::open(scratch.config(), 0, 2).await.expect("opens");
        assert_eq!(hints.metrics().bytes, bytes);
        fill(&hints, 1).await;
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert!(done);
        assert_eq!(seen.len(), 21);
        assert_eq!(hints.metrics().bytes, 0);
    });
}

#[test]
fn bounds_hold() {
    rt::block_on(async {
        let scratch = Scratch::new("bounds");
        let config = HintsConfig { max_bytes: 1000, ..scratch.config() };
        let hints = Hints::open(config, 0, 1).await.expect("opens");
        let down_for = Some(Duration::from_secs(4 * 3600));
        let refused = hints.store(target(), &mutation(1), 1, down_for).await;
        assert!(matches!(refused, Err(Refused::TooLongDown)), "{refused:?}");
        let mut kept = 0;
        while hints.store(target(), &mutation(kept), 1, Some(Duration::from_secs(1))).await.is_ok() {
            kept += 1;
        }
        assert!(kept > 3 && hints.metrics().bytes <= 1000 + 29, "{kept} hints in {:?}", hints.metrics());
        assert_eq!(hints.metrics().refused, 2);
        let (done, seen) = replay(&hints, |_| Delivered::Dropped).await;
        assert!(done);
        assert_eq!((seen.len() as i32, hints.metrics().dropped as i32), (kept, kept));
        assert!(hints.store(target(), &mutation(1), 1, None).await.is_ok(), "there is room again");
    });
}

#[test]
fn stores_at_the_same_time_are_all_kept() {
    rt::block_on(async {
        let scratch = Scratch::new("together");
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        let all: Vec<Mutation> = (0..50).map(mutation).collect();
        let stores = all.iter().map(|mutation| hints.store(target(), mutation, 1, None));
        for stored in futures_util::future::join_all(stores).await {
            stored.expect("there is room");
        }
        let (_, mut seen) = replay(&hints, |_| Delivered::Sent).await;
        seen.sort_by_key(Mutation::key);
        assert_eq!(seen, all);
    });
}

#[test]
fn a_damaged_file_costs_what_is_in_it_and_no_more() {
    rt::block_on(async {
        let scratch = Scratch::new("damage");
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        fill(&hints, 20).await;
        hints.sync().await;
        drop(hints);
        let directory = scratch.0.join("0").join(target().to_string());
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(&directory).expect("a directory").map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        assert!(files.len() > 2, "several files");
        let mut bytes = std::fs::read(&files[1]).expect("read");
        bytes[60] ^= 1;
        std::fs::write(&files[1], bytes).expect("written");
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert!(done);
        assert!((10..20).contains(&seen.len()), "{} of 20", seen.len());
        assert_eq!(hints.metrics().corrupted, 1);
    });
}

#[test]
fn missed_writes_are_known_until_they_are_repaired_also_after_a_restart() {
    rt::block_on(async {
        let scratch = Scratch::new("missed");
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        fill(&hints, 1).await;
        assert_eq!(hints.missed(), []);
        let table = mutation(0).table();
        let too_long = Some(hints.settings.borrow().window + Duration::from_secs(1));
        for _ in 0..3 {
            hints.store(target(), &mutation(7), 1, too_long).await.expect_err("it was down for too long");
        }
        let known =
            |hints: &Hints| -> Vec<_> { hints.missed().iter().map(|one| (one.target, one.table, one.cause)).collect() };
        let window = (target(), Some(table), Cause::WindowOver);
        assert_eq!(known(&hints), [window]);
        // A hint that is too old, and a file that is damaged.
        let other = TableId(Uuid::from_u128(9));
        replay(&hints, |_| Delivered::Expired(other)).await;
        fill(&hints, 3).await;
        drop(hints);
        let directory = scratch.0.join("0").join(target().to_string());
        let file =
            std::fs::read_dir(&directory).expect("a directory").next().expect("a file").expect("readable").path();
        let mut bytes = std::fs::read(&file).expect("readable");
        *bytes.last_mut().expect("not empty") ^= 1;
        std::fs::write(&file, bytes).expect("writable");
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        let (done, seen) = replay(&hints, |_| Delivered::Sent).await;
        assert_eq!((done, seen.len()), (true, 2));
        let all = [(target(), None, Cause::Damaged), window, (target(), Some(other), Cause::Expired)];
        assert_eq!(known(&hints), all);
        drop(hints);
        // Fewer shards than before: another one takes the notes over.
        std::fs::rename(scratch.0.join("0"), scratch.0.join("1")).expect("renamed");
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        assert_eq!(known(&hints), all);
        assert!(!scratch.0.join("1").join(missed::NAME).exists());
        hints.forget_missed(target(), Some(&[Some(other), None]), 0).await;
        assert_eq!(known(&hints), all, "what came since stays");
        hints.forget_missed(target(), Some(&[Some(other), None]), i64::MAX).await;
        drop(hints);
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        assert_eq!(known(&hints), [window]);
        hints.forget_missed(target(), None, i64::MAX).await;
        assert_eq!(known(&hints), []);
    });
}

#[test]
fn a_hint_that_is_cut_off_is_noted() {
    rt::block_on(async {
        let scratch = Scratch::new("cut");
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        fill(&hints, 3).await;
        drop(hints);
        let directory = scratch.0.join("0").join(target().to_string());
        let file =
            std::fs::read_dir(&directory).expect("a directory").next().expect("a file").expect("readable").path();
        let bytes = std::fs::read(&file).expect("readable");
        std::fs::write(&file, &bytes[..bytes.len() - 1]).expect("writable");
        let hints = Hints::open(scratch.config(), 0, 1).await.expect("opens");
        assert_eq!(replay(&hints, |_| Delivered::Sent).await.1.len(), 2);
        let known: Vec<_> = hints.missed().iter().map(|one| (one.table, one.cause)).collect();
        assert_eq!(known, [(None, Cause::Damaged)]);
    });
}
