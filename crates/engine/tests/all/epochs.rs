//! Truncation by epochs: older data is discarded, whatever crashes in between, and writes that
//! were admitted before do not appear after it.

use crate::support::*;
use engine::commitlog::{self, ReplayOptions};
use engine::datadir::DataDir;
use engine::replay_logs;
use engine::{Engine, EngineConfig};
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::ShardId;
use std::path::{Path, PathBuf};
use std::rc::Rc;

fn insert(k: i32, value: &str) -> Change {
    Change::Insert { k, c: 0, value: value.into() }
}

async fn write(engine: &Engine, schema: &TableSchema, timestamp: i64, k: i32, value: &str) {
    engine.apply_durably(&insert(k, value).mutation(schema, timestamp), &key(k)).await.unwrap();
}

/// The keys of the existing rows.
async fn keys(engine: &Engine, schema: &TableSchema) -> Vec<i32> {
    read(engine, schema.id, PartitionRange::FULL, Slice::full()).await.into_keys().collect()
}

/// Opens an engine as a node's only shard does, with a table that is in this epoch according to
/// the metadata. `before_replay` runs where the node applies changes of the metadata.
async fn open_at<F>(
    config: EngineConfig,
    schema: &Rc<TableSchema>,
    epoch: u64,
    before_replay: impl FnOnce(Rc<Engine>) -> F,
) -> Rc<Engine>
where
    F: Future<Output = ()>,
{
    let _lock = DataDir::open(&config.data_dir, "test", 1).await.unwrap();
    let old = commitlog::find_old(&config.data_dir.join("commitlog")).await.unwrap();
    let engine = Engine::open(config).await.unwrap();
    ENGINES.set(engine.clone());
    engine.catch_up_with_epoch(schema, &tablets(2), epoch, rt::time::wall_micros()).await.unwrap();
    engine.reshard(schema.clone(), &tablets(2), &[0, 1].into()).await.unwrap();
    engine.add_table(schema.clone(), tablets(2)).await.unwrap();
    engine.set_epoch(schema.id, epoch);
    before_replay(engine.clone()).await;
    replay_logs(&old, *ENGINES, ReplayOptions::default(), |_, _| Some(ShardId(0))).await.unwrap();
    engine.replay_finished().await.unwrap();
    commitlog::retire(&old).await.unwrap();
    engine.start();
    engine
}

async fn reopen(config: EngineConfig, schema: &Rc<TableSchema>, epoch: u64) -> Rc<Engine> {
    open_at(config, schema, epoch, |_| async {}).await
}

/// Rows in sstables and in memtables.
async fn fill(engine: &Engine, schema: &TableSchema) {
    for k in 0..10 {
        write(engine, schema, 1, k, "old").await;
    }
    engine.flush(None).await.unwrap();
    for k in 10..20 {
        write(engine, schema, 1, k, "old").await;
    }
}

#[test]
fn writes_after_the_beginning_of_an_epoch_survive_a_crash() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("epoch"), schema(0, |_| {}));
        let config = || config(&scratch, 16 << 20);
        let engine = open(config(), &schema, &tablets(2)).await;
        fill(&engine, &schema).await;
        assert_eq!((engine.epoch(schema.id), engine.newest_epoch()), (0, 0));
        engine.truncate_at(schema.id, 7, rt::time::wall_micros()).await.unwrap();
        assert_eq!((engine.epoch(schema.id), engine.newest_epoch()), (7, 7));
        assert!(keys(&engine, &schema).await.is_empty());
        engine.begin_epoch(&schema, 7).await.unwrap();
        // Older than what was truncated, by its timestamp.
        write(&engine, &schema, 0, 3, "new").await;
        engine.flush(None).await.unwrap();
        write(&engine, &schema, 0, 4, "new").await;
        engine.abandon().await;
        for _ in 0..2 {
            let engine = reopen(config(), &schema, 7).await;
            assert_eq!(keys(&engine, &schema).await, [3, 4]);
            assert_eq!((engine.epoch(schema.id), engine.newest_epoch()), (7, 7));
            engine.abandon().await;
        }
        // The next one was agreed upon, and this node knows nothing of it yet.
        let engine = reopen(config(), &schema, 9).await;
        assert!(keys(&engine, &schema).await.is_empty());
        write(&engine, &schema, 0, 5, "newer").await;
        engine.stop().await;
        let engine = reopen(config(), &schema, 9).await;
        assert_eq!(keys(&engine, &schema).await, [5]);
        engine.stop().await;
    });
}

#[test]
fn an_empty_table_begins_an_epoch_too() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("epoch-empty"), schema(0, |_| {}));
        let config = || config(&scratch, 16 << 20);
        let engine = open(config(), &schema, &tablets(2)).await;
        engine.truncate_at(schema.id, 2, rt::time::wall_micros()).await.unwrap();
        engine.begin_epoch(&schema, 2).await.unwrap();
        write(&engine, &schema, 1, 1, "new").await;
        engine.abandon().await;
        let engine = reopen(config(), &schema, 2).await;
        assert_eq!(keys(&engine, &schema).await, [1]);
        engine.stop().await;
    });
}

#[test]
fn a_start_makes_void_what_a_crash_kept_from_it_and_takes_a_snapshot() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("epoch-late"), schema(0, |_| {}));
        let config = || EngineConfig { auto_snapshot: true, ..config(&scratch, 16 << 20) };
        let engine = open(config(), &schema, &tablets(2)).await;
        fill(&engine, &schema).await;
        engine.abandon().await;
        // Twice: the old logs are still there after the first crash.
        for _ in 0..2 {
            let engine = open_at(config(), &schema, 5, |engine| async move { engine.abandon().await }).await;
            assert!(keys(&engine, &schema).await.is_empty());
        }
        let engine = reopen(config(), &schema, 5).await;
        assert!(keys(&engine, &schema).await.is_empty());
        write(&engine, &schema, 0, 1, "new").await;
        engine.stop().await;
        let engine = reopen(config(), &schema, 5).await;
        assert_eq!(keys(&engine, &schema).await, [1]);
        engine.stop().await;
        let dir = directory_of(&scratch);
        assert_eq!(names(&dir.join("snapshots")).len(), 1);
        assert_eq!(keys_in_snapshots(&dir, &schema).await, Vec::from_iter(0..20), "also what was only logged");
    });
}

/// The directory of the only table.
fn directory_of(data: &Path) -> PathBuf {
    data.join("data/ks").read_dir().unwrap().next().unwrap().unwrap().path()
}

/// The keys of the rows in all snapshots of a table: in a data directory with their sstables.
async fn keys_in_snapshots(table: &Path, schema: &Rc<TableSchema>) -> Vec<i32> {
    let scratch = Scratch::new("epoch-snapshots");
    let to = scratch.join("data/ks").join(table.file_name().unwrap());
    // Stamps the data directory.
    open(config(&scratch, 16 << 20), schema, &tablets(2)).await.stop().await;
    std::fs::create_dir_all(&to).unwrap();
    for snapshot in names(&table.join("snapshots")) {
        let from = table.join("snapshots").join(snapshot);
        for name in names(&from).into_iter().filter(|name| name.contains("-big-")) {
            std::fs::copy(from.join(&name), to.join(&name)).unwrap();
        }
    }
    let engine = open(config(&scratch, 16 << 20), schema, &tablets(2)).await;
    let found = keys(&engine, schema).await;
    engine.stop().await;
    found
}

/// Rows that are in no sstable, not even in a directory of the table.
#[test]
fn a_late_epoch_keeps_rows_that_were_only_logged_in_a_snapshot() {
    rt::block_on(async {
        for auto_snapshot in [true, false] {
            let (scratch, schema) = (Scratch::new("epoch-logged"), schema(0, |_| {}));
            let config = || EngineConfig { auto_snapshot, ..config(&scratch, 16 << 20) };
            let engine = open(config(), &schema, &tablets(2)).await;
            for k in 0..10 {
                write(&engine, &schema, 1, k, "old").await;
            }
            engine.abandon().await;
            let engine = reopen(config(), &schema, 5).await;
            assert!(keys(&engine, &schema).await.is_empty());
            write(&engine, &schema, 0, 1, "new").await;
            engine.abandon().await;
            let engine = reopen(config(), &schema, 5).await;
            assert_eq!(keys(&engine, &schema).await, [1]);
            engine.stop().await;
            let dir = directory_of(&scratch);
            assert_eq!(dir.join("snapshots").exists(), auto_snapshot);
            if auto_snapshot {
                assert_eq!(keys_in_snapshots(&dir, &schema).await, Vec::from_iter(0..10));
            }
        }
    });
}

fn names(dir: &Path) -> Vec<String> {
    dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// A restarted node learns of the TRUNCATE before it has replayed its logs.
#[test]
fn logged_mutations_that_are_not_replayed_yet_are_truncated_too() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("epoch-replay"), schema(0, |_| {}));
        let config = || EngineConfig { auto_snapshot: true, ..config(&scratch, 16 << 20) };
        let engine = open(config(), &schema, &tablets(2)).await;
        fill(&engine, &schema).await;
        engine.abandon().await;
        let id = schema.id;
        let begin = |engine: Rc<Engine>| {
            let schema = schema.clone();
            async move {
                engine.truncate_at(id, 3, rt::time::wall_micros()).await.unwrap();
                engine.begin_epoch(&schema, 3).await.unwrap();
            }
        };
        let engine = open_at(config(), &schema, 0, begin).await;
        assert!(keys(&engine, &schema).await.is_empty());
        write(&engine, &schema, 0, 1, "new").await;
        engine.abandon().await;
        let engine = reopen(config(), &schema, 3).await;
        assert_eq!(keys(&engine, &schema).await, [1]);
        engine.stop().await;
        assert_eq!(keys_in_snapshots(&directory_of(&scratch), &schema).await, Vec::from_iter(0..20));
    });
}

/// A restarted node learns of the DROP TABLE before it has replayed its logs.
#[test]
fn logged_mutations_that_are_not_replayed_yet_are_in_the_snapshot_of_a_drop() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("drop-replay"), schema(0, |_| {}));
        let config = || EngineConfig { auto_snapshot: true, ..config(&scratch, 16 << 20) };
        let engine = open(config(), &schema, &tablets(2)).await;
        fill(&engine, &schema).await;
        engine.abandon().await;
        let id = schema.id;
        let drop = async |engine: Rc<Engine>| engine.drop_table(id, rt::time::wall_micros()).await.unwrap();
        let engine = open_at(config(), &schema, 0, drop).await;
        engine.stop().await;
        assert_eq!(keys_in_snapshots(&directory_of(&scratch), &schema).await, Vec::from_iter(0..20));
    });
}

/// A write that was admitted before and waits for room is removed with the older data, or fails.
/// Nothing of it appears later.
#[test]
fn writes_that_wait_for_room_are_truncated_too() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("epoch-waiting"), schema(0, |_| {}));
        let mut config = config(&scratch, 16 << 20);
        // A few writes fill the log's buffer.
        config.log.buffer_limit = 4 << 10;
        let engine = open(config, &schema, &tablets(2)).await;
        let mut waiting = Vec::new();
        for k in 0..200 {
            let (engine, schema) = (engine.clone(), schema.clone());
            waiting.push(rt::task::spawn(async move {
                let mutation = insert(k, &"x".repeat(500)).mutation(&schema, 1);
                match k % 2 {
                    0 => engine.apply_durably(&mutation, &key(k)).await,
                    _ => engine.apply_group(&[(mutation, key(k))]).await,
                }
            }));
        }
        rt::task::yield_now().await;
        let blocked = engine.metrics().log.blocked_writers;
        assert!(blocked > 10, "{blocked} writes wait");
        engine.truncate_at(schema.id, 4, rt::time::wall_micros()).await.unwrap();
        assert!(keys(&engine, &schema).await.is_empty());
        for write in waiting {
            write.await.unwrap().unwrap();
        }
        assert!(keys(&engine, &schema).await.is_empty());
        engine.stop().await;
    });
}

/// Data that an administrator compacted meanwhile does not return in the compaction's output.
#[test]
fn a_compaction_that_is_asked_for_meanwhile_brings_nothing_back() {
    rt::block_on(async {
        let (scratch, schema) = (Scratch::new("epoch-compaction"), schema(0, |_| {}));
        // The snapshot makes the truncation long: it flushes what the compaction then finds.
        let config = EngineConfig { auto_snapshot: true, ..config(&scratch, 16 << 20) };
        let engine = open(config, &schema, &tablets(2)).await;
        for pause in 0..40 {
            fill(&engine, &schema).await;
            let (compacting, id) = (engine.clone(), schema.id);
            let compaction = rt::task::spawn(async move {
                rt::time::sleep(rt::time::Duration::from_micros(250 * pause)).await;
                compacting.compact_major(id).await
            });
            engine.truncate(id, rt::time::wall_micros()).await.unwrap();
            // It may have been refused.
            let _ = compaction.await.unwrap();
            assert!(keys(&engine, &schema).await.is_empty(), "asked for after {pause} quarters of a millisecond");
        }
        engine.stop().await;
    });
}
