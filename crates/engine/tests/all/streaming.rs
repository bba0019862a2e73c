//! A tablet moves between two engines as whole files: over cuts and restarts at every place, with
//! damage in every file, beside truncations and new writes.

use crate::support::table_files::{all, insert, write};
use crate::support::*;
use engine::streaming::{AttachedFiles, Direction, Incoming, Pinned, StreamLayout, StreamTarget};
use engine::{Engine, EngineConfig, EngineError};
use model::HostId;
use model::schema::TableSchema;
use rt::Pieces;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use uuid::Uuid;

/// The tablet that moves, of four.
pub const TABLET: u32 = 1;
pub const SESSION: Uuid = Uuid::from_u128(0x5E55);
pub const KEYS: i32 = 40;

pub fn host(n: u128) -> HostId {
    HostId(Uuid::from_u128(n))
}

pub fn config_of(dir: &Path, n: u128) -> EngineConfig {
    EngineConfig { host_id: host(n), ..config(dir, 32 << 20) }
}

pub fn target() -> StreamTarget {
    StreamTarget { table: still(0).id, tablet: TABLET, session: SESSION, epoch: 0 }
}

pub fn own_keys() -> impl Iterator<Item = i32> {
    let range = tablets(4)[TABLET as usize].range.clone();
    (0..KEYS).filter(move |k| range.contains(&key(*k)))
}

/// An engine with the tablet in several sstables: small ones, and one with files of more than a
/// chunk.
pub async fn source(dir: &Path, schema: &Rc<TableSchema>) -> Rc<Engine> {
    let engine = open(config_of(dir, 1), schema, &tablets(4)).await;
    for round in 0..3 {
        for k in 0..KEYS {
            write(&engine, schema, 10 + round, insert(k, round as i32, "small")).await;
        }
        engine.flush(None).await.unwrap();
    }
    for k in own_keys() {
        for c in 10..40 {
            // What compression cannot shorten.
            let value: String = (0..100).map(|_| rt::random::uuid_v4().to_string()).collect();
            write(&engine, schema, 20, insert(k, c, &value)).await;
        }
    }
    engine
}

/// An engine that is about to receive the tablet, with newer writes.
pub async fn receiver(dir: &Path, schema: &Rc<TableSchema>) -> Rc<Engine> {
    let all = tablets(4);
    let engine = open(config_of(dir, 2), schema, &all[2..]).await;
    engine.add_tablet(schema.id, all[TABLET as usize].clone()).await.unwrap();
    engine.set_pending_tablets(schema.id, &[TABLET].into());
    engine
}

/// A source and a receiver of its tablet.
pub struct Pair {
    pub from: Scratch,
    pub to: Scratch,
    pub schema: Rc<TableSchema>,
    pub source: Rc<Engine>,
    pub receiver: Rc<Engine>,
}

/// Runs a test with a new pair, and stops both engines.
pub fn with_pair(name: &str, test: impl AsyncFnOnce(&Pair)) {
    let [from, to] = ["from", "to"].map(|end| Scratch::new(&format!("{name}-{end}")));
    rt::block_on(async {
        let schema = still(0);
        let (source, receiver) = (source(&from, &schema).await, receiver(&to, &schema).await);
        let pair = Pair { from, to, schema, source, receiver };
        test(&pair).await;
        pair.receiver.stop().await;
        pair.source.stop().await;
    });
}

/// Reads ranges of the sequence from the source and gives them to the receiver.
async fn transfer(from: &Pinned, to: &mut Incoming, ranges: &[Range<u64>], chunk: u64) -> Result<u64, EngineError> {
    let mut sent = 0;
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + chunk);
            let bytes = Pieces::join(from.read(at..end).await?);
            assert_eq!((bytes.len() as u64, to.position()), (end - at, at));
            to.push(bytes).await?;
            sent += end - at;
            at = end;
        }
    }
    Ok(sent)
}

/// Moves the tablet, and returns what was attached.
async fn move_tablet(source: &Engine, receiver: &Engine) -> Result<AttachedFiles, EngineError> {
    let pinned = source.pin_tablet(target().table, TABLET, SESSION, 0).await?;
    let mut incoming = receiver.receive(target(), host(1), pinned.sstables()).await?;
    let missing = incoming.missing();
    transfer(&pinned, &mut incoming, &missing, 100_000).await?;
    let arrived = incoming.finish().await?;
    receiver.attach_streamed(target(), vec![arrived], || Ok(())).await
}

/// The rows of the tablet.
pub async fn tablet(engine: &Engine, schema: &TableSchema) -> Seen {
    let mut seen = all(engine, schema).await;
    seen.retain(|k, _| own_keys().any(|own| own == *k));
    seen
}

/// The contents of all sstable files with one of these generations.
fn contents(dir: &Path, layout: &StreamLayout) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let is_own = |name: &str| layout.generations().iter().any(|generation| name.contains(&generation.to_string()));
    named.filter(|(name, _)| is_own(name)).map(|(name, path)| (name, std::fs::read(path).unwrap())).collect()
}

pub fn dir_of(root: &Path) -> std::path::PathBuf {
    crate::support::table_files::table_dir(root)
}

#[test]
fn the_files_arrive_unchanged_and_are_read_with_newer_writes() {
    let (from, to) = (Scratch::new("stream-from"), Scratch::new("stream-to"));
    rt::block_on(async {
        let schema = still(0);
        let source = source(&from, &schema).await;
        let before = tablet(&source, &schema).await;
        let receiver = receiver(&to, &schema).await;
        let k = own_keys().next().unwrap();
        write(&receiver, &schema, 15, Change::DeleteRow { k, c: 0 }).await;
        write(&receiver, &schema, 30, insert(k, 99, "new")).await;

        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await.unwrap();
        let longest = pinned.layout().files().iter().map(|file| file.len).max().unwrap();
        assert!(longest > 512 << 10, "{longest} bytes in several writes");
        assert_eq!(pinned.layout().generations().len(), 4);
        let attached = move_tablet(&source, &receiver).await.unwrap();
        assert_eq!(attached, AttachedFiles { sstables: 4, bytes: pinned.layout().total() });
        let (sent, arrived) = (contents(&dir_of(&from), pinned.layout()), contents(&dir_of(&to), pinned.layout()));
        assert_eq!(sent.len(), pinned.layout().files().len());
        assert!(sent == arrived, "the files are identical");
        let mut expected = before.clone();
        expected.get_mut(&k).unwrap().1.remove(&0);
        expected.get_mut(&k).unwrap().1.insert(99, (true, Some("new".into())));
        assert_eq!(tablet(&receiver, &schema).await, expected);

        // What the receiver has is released.
        let (first, second) = (pinned.layout().bytes_of(0), pinned.layout().bytes_of(1));
        pinned.release_before(second.end - 1).await.unwrap();
        assert!(pinned.read(first.start..first.start + 1).await.is_err());
        assert_eq!(pinned.read(second.clone()).await.unwrap().len() as u64, second.end - second.start);
        assert_eq!(tablet(&source, &schema).await, before);

        // Nothing is sent again, nothing is attached again.
        assert!(receiver.is_attached(target()).await.unwrap());
        source.unpin_tablet(schema.id, SESSION, 0).await.unwrap();
        assert_eq!(move_tablet(&source, &receiver).await.unwrap(), AttachedFiles::default());
        receiver.abandon().await;
        let receiver = open(config_of(&to, 2), &schema, &tablets(4)[1..]).await;
        assert_eq!(tablet(&receiver, &schema).await, expected, "after a crash");
        assert!(receiver.is_attached(target()).await.unwrap());

        // The session ends.
        for engine in [&source, &receiver] {
            assert_eq!(engine.sweep_sessions(&schema, |session| session == SESSION).await.unwrap(), 0);
            assert_eq!(engine.sweep_sessions(&schema, |_| false).await.unwrap(), 1);
            assert_eq!(engine.session_dirs(&schema).await.unwrap(), []);
        }
        assert_eq!(tablet(&receiver, &schema).await, expected);
        receiver.compact_major(schema.id).await.unwrap();
        assert_eq!(tablet(&receiver, &schema).await, expected);
        receiver.stop().await;
        source.stop().await;
    });
}

/// The connection, the source or the receiver may end at any byte. What is durable is not sent
/// again, and a connection that was cut costs nothing.
#[test]
fn an_attempt_that_was_cut_continues() {
    let (from, to) = (Scratch::new("cut-from"), Scratch::new("cut-to"));
    rt::block_on(async {
        let schema = still(0);
        let mut source = source(&from, &schema).await;
        let before = tablet(&source, &schema).await;
        let mut receiver = receiver(&to, &schema).await;
        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await.unwrap();
        let (total, layout) = (pinned.layout().total(), pinned.layout().clone());
        drop(pinned);
        let mut sent = 0;
        for cut in 0.. {
            let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await.unwrap();
            assert_eq!(*pinned.layout(), layout, "the same files after every restart");
            let mut incoming = receiver.receive(target(), host(1), pinned.sstables()).await.unwrap();
            let missing = incoming.missing();
            if missing.is_empty() {
                let arrived = incoming.finish().await.unwrap();
                receiver.attach_streamed(target(), vec![arrived], || Ok(())).await.unwrap();
                break;
            }
            // Two connections in this attempt. The second continues where the first was cut.
            let end = missing[0].end.min(missing[0].start + (cut + 1) * total / 7);
            let half = missing[0].start + (end - missing[0].start) / 2;
            sent += transfer(&pinned, &mut incoming, std::slice::from_ref(&(missing[0].start..half)), 60_001)
                .await
                .unwrap();
            assert_eq!(incoming.missing().first().map(|range| range.start), Some(half));
            sent += transfer(&pinned, &mut incoming, std::slice::from_ref(&(half..end)), 60_001).await.unwrap();
            pinned.release_before(incoming.durable_before()).await.unwrap();
            drop((incoming, pinned));
            if cut % 2 == 0 {
                receiver.abandon().await;
                receiver = open(config_of(&to, 2), &schema, &tablets(4)[1..]).await;
            } else {
                source.abandon().await;
                source = open(config_of(&from, 1), &schema, &tablets(4)).await;
            }
        }
        assert!(sent >= total && sent < 4 * total, "{sent} of {total}");
        assert_eq!(tablet(&receiver, &schema).await, before);
        receiver.stop().await;
        source.stop().await;
    });
}

/// Whichever file is damaged on its way, nothing of it becomes part of the table.
#[test]
fn damage_on_the_way_is_never_loaded() {
    with_pair("damage", async |Pair { schema, source, receiver, .. }| {
        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await.unwrap();
        let whole = pinned.read(0..pinned.layout().total()).await.unwrap().join();
        for (index, file) in pinned.layout().files().iter().enumerate() {
            let place = (file.start + rt::random::u64() % file.len.max(1)) as usize;
            let mut damaged = whole.to_vec();
            damaged[place] ^= 1 << (place % 8);
            let session = Uuid::from_u128(index as u128);
            let mut incoming =
                receiver.receive(StreamTarget { session, ..target() }, host(1), pinned.sstables()).await.unwrap();
            let pushed = incoming.push(damaged.into()).await;
            let error = pushed.expect_err("it is noticed").to_string();
            assert!(error.contains("corrupt"), "byte {place}, {:?}: {error}", file.component);
            let finished = incoming.finish().await;
            assert!(finished.is_err(), "it has not arrived");
        }
        assert_eq!(tablet(receiver, schema).await, Seen::new());
        // The undamaged bytes are taken.
        let mut incoming = receiver.receive(target(), host(1), pinned.sstables()).await.unwrap();
        incoming.push(whole).await.unwrap();
        assert!(matches!(incoming.push(vec![0].into()).await, Err(EngineError::Layout(_))), "too many bytes");
        let arrived = incoming.finish().await.unwrap();
        receiver.attach_streamed(target(), vec![arrived], || Ok(())).await.unwrap();
        assert_eq!(tablet(receiver, schema).await, tablet(source, schema).await);
    });
}

/// The value of a variable of the environment: how long a test that draws at random goes on.
fn times(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|times| times.parse().ok()).unwrap_or(default)
}

/// `STREAM_FLIPS=n` flips n bits (default 60), each at a random place of the sequence.
#[test]
fn no_flipped_bit_is_loaded() {
    with_pair("flips", async |Pair { schema, source, receiver, .. }| {
        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await.unwrap();
        let whole = pinned.read(0..pinned.layout().total()).await.unwrap().join();
        for flip in 0..times("STREAM_FLIPS", 60) {
            let session = Uuid::from_u128(flip as u128);
            let place = (rt::random::u64() % whole.len() as u64) as usize;
            let mut damaged = whole.to_vec();
            damaged[place] ^= 1 << (rt::random::u64() % 8);
            let target = StreamTarget { session, ..target() };
            let mut incoming = receiver.receive(target, host(1), pinned.sstables()).await.unwrap();
            let pushed = incoming.push(damaged.into()).await;
            assert!(pushed.is_err() && incoming.finish().await.is_err(), "byte {place} of {}", whole.len());
            receiver.remove_session(schema, session).await.unwrap();
        }
        assert_eq!(tablet(receiver, schema).await, Seen::new());
    });
}

/// `STREAM_CUTS=n` cuts connections n times (default 60), each after a random number of bytes: in
/// the middle of a chunk, which is lost. Only such chunks are sent again, and the files are equal.
#[test]
fn each_cut_costs_at_most_a_chunk() {
    const CHUNK: u64 = 60_001;
    with_pair("cuts", async |Pair { from, to, schema, source, receiver }| {
        let cuts = times("STREAM_CUTS", 60);
        let mut done = 0;
        for round in 0.. {
            let session = Uuid::from_u128(round);
            let target = StreamTarget { session, ..target() };
            let pinned = source.pin_tablet(schema.id, TABLET, session, 0).await.unwrap();
            let mut incoming = receiver.receive(target, host(1), pinned.sstables()).await.unwrap();
            let total = pinned.layout().total();
            let (mut sent, mut cut) = (0, 0);
            while let Some(missing) = incoming.missing().first().cloned() {
                let carried = 1 + rt::random::u64() % (total / 4);
                let whole = carried / CHUNK * CHUNK;
                let end = missing.end.min(missing.start + whole);
                let range = missing.start..end;
                sent += transfer(&pinned, &mut incoming, std::slice::from_ref(&range), CHUNK).await.unwrap();
                sent += if end < missing.end { carried - whole } else { 0 };
                cut += 1;
            }
            assert!(sent <= total + cut * CHUNK, "{sent} bytes were sent instead of {total}, over {cut} cuts");
            let arrived = incoming.finish().await.unwrap();
            done += cut as usize;
            if done < cuts {
                drop(arrived);
                receiver.remove_session(schema, session).await.unwrap();
                source.remove_session(schema, session).await.unwrap();
                continue;
            }
            receiver.attach_streamed(target, vec![arrived], || Ok(())).await.unwrap();
            let files = |end| contents(&dir_of(end), pinned.layout());
            assert!(files(from) == files(to), "the files are identical");
            break;
        }
        assert_eq!(tablet(receiver, schema).await, tablet(source, schema).await);
    });
}

/// What the disk damages before the sstables are part of the tablet is asked for again.
#[test]
fn damaged_received_sstables_are_detected_and_streamed_again() {
    with_pair("rot", async |Pair { to, schema, source, receiver, .. }| {
        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await.unwrap();
        let mut incoming = receiver.receive(target(), host(1), pinned.sstables()).await.unwrap();
        let missing = incoming.missing();
        transfer(&pinned, &mut incoming, &missing, 1 << 20).await.unwrap();
        let arrived = incoming.finish().await.unwrap();
        let session = dir_of(to).join(format!("streaming/in-{}/epoch-0", SESSION.simple()));
        let dir = std::fs::read_dir(session).unwrap().next().unwrap().unwrap().path();
        crate::support::table_files::damage(&crate::support::table_files::files(&dir, "-Filter.db")[0]);
        let attached = receiver.attach_streamed(target(), vec![arrived], || Ok(())).await;
        assert!(matches!(attached, Err(EngineError::Sstable(_))), "{attached:?}");
        assert_eq!(tablet(receiver, schema).await, Seen::new());
        assert_eq!(move_tablet(source, receiver).await.unwrap().sstables, 4);
        assert_eq!(tablet(receiver, schema).await, tablet(source, schema).await);
    });
}

/// An attempt that is dropped at any byte is not in the way of the next one.
#[test]
fn a_dropped_attempt_writes_nothing_more() {
    with_pair("dropped", async |Pair { schema, source, receiver, .. }| {
        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await.unwrap();
        for parts in (1..40).rev() {
            let mut incoming = receiver.receive(target(), host(1), pinned.sstables()).await.unwrap();
            let Some(first) = incoming.missing().first().cloned() else { break };
            let end = first.start + (first.end - first.start).div_ceil(parts);
            transfer(&pinned, &mut incoming, std::slice::from_ref(&(first.start..end)), 5_000).await.unwrap();
        }
        assert_eq!(move_tablet(source, receiver).await.unwrap().sstables, 4);
        assert_eq!(tablet(receiver, schema).await, tablet(source, schema).await);
    });
}

/// A session that ends while its sstables become part of the tablet leaves no files.
#[test]
fn a_session_that_has_ended_is_not_marked() {
    with_pair("ended", async |Pair { schema, source, receiver, .. }| {
        move_tablet(source, receiver).await.unwrap();
        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await.unwrap();
        let ended = StreamTarget { session: Uuid::from_u128(8), ..target() };
        let mut incoming = receiver.receive(ended, host(1), pinned.sstables()).await.unwrap();
        let missing = incoming.missing();
        transfer(&pinned, &mut incoming, &missing, 1 << 20).await.unwrap();
        let arrived = incoming.finish().await.unwrap();
        receiver.remove_session(schema, ended.session).await.unwrap();
        let attached = receiver.attach_streamed(ended, vec![arrived], || Ok(())).await.unwrap();
        assert_eq!(attached, AttachedFiles::default(), "the tablet has all of them");
        assert_eq!(receiver.session_dirs(schema).await.unwrap(), [(Direction::In, SESSION)]);
    });
}

/// Data from before a TRUNCATE does not return, wherever the streaming is at that moment.
#[test]
fn truncated_data_does_not_return() {
    let (from, to) = (Scratch::new("truncated-from"), Scratch::new("truncated-to"));
    rt::block_on(async {
        let schema = still(0);
        let source = source(&from, &schema).await;
        let receiver = receiver(&to, &schema).await;
        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await.unwrap();
        let mut incoming = receiver.receive(target(), host(1), pinned.sstables()).await.unwrap();
        let missing = incoming.missing();
        transfer(&pinned, &mut incoming, &missing, 1 << 20).await.unwrap();
        let arrived = incoming.finish().await.unwrap();

        let now = rt::time::wall_micros();
        receiver.truncate_at(schema.id, 7, now).await.unwrap();
        let attached = receiver.attach_streamed(target(), vec![arrived], || Ok(())).await;
        assert!(matches!(attached, Err(EngineError::Cancelled)), "{attached:?}");
        assert_eq!(all(&receiver, &schema).await, Seen::new());
        source.truncate_at(schema.id, 7, now).await.unwrap();
        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 0).await;
        assert!(matches!(pinned.map(drop), Err(EngineError::Cancelled)), "pinned before, discarded now");

        let k = own_keys().next().unwrap();
        write(&source, &schema, 5, insert(k, 1, "after")).await;
        let pinned = source.pin_tablet(schema.id, TABLET, SESSION, 7).await.unwrap();
        let mut incoming =
            receiver.receive(StreamTarget { epoch: 7, ..target() }, host(1), pinned.sstables()).await.unwrap();
        let missing = incoming.missing();
        transfer(&pinned, &mut incoming, &missing, 1 << 20).await.unwrap();
        let arrived = incoming.finish().await.unwrap();
        receiver.attach_streamed(StreamTarget { epoch: 7, ..target() }, vec![arrived], || Ok(())).await.unwrap();
        assert_eq!(tablet(&receiver, &schema).await, tablet(&source, &schema).await);
        receiver.abandon().await;
        let receiver = open(config_of(&to, 2), &schema, &tablets(4)[1..]).await;
        assert_eq!(tablet(&receiver, &schema).await, tablet(&source, &schema).await, "after a crash");
        receiver.stop().await;
        source.stop().await;
    });
}

/// A tombstone that a pending tablet has received stays until the data that it covers has arrived.
#[test]
fn a_pending_tablet_keeps_its_tombstones() {
    with_pair("pending", async |Pair { schema, source, receiver, .. }| {
        for k in own_keys() {
            write(receiver, schema, 100, Change::DeletePartition { k }).await;
        }
        receiver.compact_major(schema.id).await.unwrap();
        move_tablet(source, receiver).await.unwrap();
        assert_eq!(tablet(receiver, schema).await, Seen::new(), "the deleted rows do not return");
        receiver.compact_major(schema.id).await.unwrap();
        assert!(receiver.table_stats(schema.id).unwrap().sstables > 0, "the tombstones are still there");
        receiver.set_pending_tablets(schema.id, &Default::default());
        receiver.compact_major(schema.id).await.unwrap();
        assert_eq!(receiver.table_stats(schema.id).unwrap().sstables, 0, "they are not needed any more");
    });
}

/// Sstables with keys of other tablets, or of columns that the table does not have, are refused.
#[test]
fn sstables_that_do_not_belong_to_the_tablet_are_refused() {
    with_pair("foreign", async |Pair { schema, source, receiver, .. }| {
        let pinned = source.pin_tablet(schema.id, 2, SESSION, 0).await.unwrap();
        let mut incoming = receiver.receive(target(), host(1), pinned.sstables()).await.unwrap();
        let missing = incoming.missing();
        transfer(&pinned, &mut incoming, &missing, 1 << 20).await.unwrap();
        let arrived = incoming.finish().await.unwrap();
        let attached = receiver.attach_streamed(target(), vec![arrived], || Ok(())).await;
        let error = attached.expect_err("it is another tablet").to_string();
        assert!(error.contains("keys outside"), "{error}");
        let incoming = receiver
            .receive(StreamTarget { session: Uuid::from_u128(7), ..target() }, host(1), pinned.sstables())
            .await
            .unwrap();
        assert!(incoming.finish().await.is_err(), "nothing has arrived");
        let elsewhere = StreamTarget { tablet: 0, ..target() };
        let error =
            receiver.attach_streamed(elsewhere, Vec::new(), || Ok(())).await.expect_err("it is not here").to_string();
        assert!(error.contains("not on shard 0"), "{error}");
        assert_eq!(tablet(receiver, schema).await, Seen::new());
        assert!(receiver.session_dirs(schema).await.unwrap().contains(&(Direction::In, SESSION)));
    });
}

/// A source names the file that it cannot send.
#[test]
fn a_damaged_source_is_named() {
    let from = Scratch::new("damaged-source");
    rt::block_on(async {
        let schema = still(0);
        let engine = source(&from, &schema).await;
        engine.flush(None).await.unwrap();
        engine.stop().await;
        let filter = crate::support::table_files::files(&dir_of(&from), "-Filter.db").remove(0);
        crate::support::table_files::damage(&filter);
        let engine = open(config_of(&from, 1), &schema, &tablets(4)).await;
        let pinned = engine.pin_tablet(schema.id, TABLET, SESSION, 0).await;
        let error = pinned.map(drop).expect_err("its files are damaged").to_string();
        let name = filter.file_name().unwrap().to_str().unwrap().replace("Filter.db", "Data.db");
        assert!(error.contains(&name) && error.contains("cannot be streamed"), "{error}");
        engine.stop().await;
    });
}
