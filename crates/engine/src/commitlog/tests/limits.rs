//! What a log may take: its size limit, its buffer, the largest record, the disk space in reserve.

use super::super::manifest;
use super::super::*;
use super::setup::*;
use crate::files::DiskReserve;
use std::path::Path;
use std::time::Duration;
use test_support::Scratch;

#[test]
fn a_log_at_its_limit_waits_for_flushes() {
    rt::block_on(async {
        let scratch = Scratch::new("log-limit");
        let config = CommitlogConfig { total_size_limit: u64::from(SEGMENT) * 5, ..config(&scratch, SyncMode::Batch) };
        let log = Commitlog::open(config).await.expect("opened");
        let schema = schema(1, 1);
        let mut written = 0;
        let flusher = {
            let log = log.clone();
            rt::task::spawn(async move {
                let mut flushes = 0;
                while flushes < 20 {
                    log.pressure().await;
                    assert!(log.wants_flush());
                    for slot in log.oldest_dirty_slots() {
                        log.clean(slot, log.position());
                        flushes += 1;
                    }
                }
            })
        };
        while !flusher.is_finished() {
            let mutation = mutation(&schema, written, 1000);
            let entry = Entry { schema: &schema, slot: SlotId((written % 7) as u32), mutation: &mutation };
            log.append_wait(&[entry]).await.expect("appended in the end");
            written += 1;
            assert!(log.disk_bytes() <= u64::from(SEGMENT) * 8, "{:?}", log.metrics());
            assert!(written < 20_000, "no flush frees the log");
        }
        log.close().await.expect("closed");
    });
}

#[test]
fn a_full_log_keeps_room_for_relogging() {
    rt::block_on(async {
        let scratch = Scratch::new("log-relog");
        let config = CommitlogConfig { total_size_limit: u64::from(SEGMENT) * 6, ..config(&scratch, SyncMode::Batch) };
        let log = Commitlog::open(config).await.expect("opened");
        let schema = schema(1, 1);
        let mut written = 0;
        let mut append = |relogged: bool| {
            let mutation = mutation(&schema, written, 1000);
            let entry = [Entry { schema: &schema, slot: SlotId(7 + u32::from(relogged)), mutation: &mutation }];
            let appended = if relogged { log.append_relogged(&entry) } else { log.append_group(&entry) };
            written += u64::from(appended.is_ok());
            appended
        };
        let is_full = || log.metrics().segments == 5 && log.metrics().buffered_bytes == 0;
        loop {
            match append(false) {
                Ok(_) => {}
                Err(LogError::Busy) if is_full() => break,
                Err(LogError::Busy) => rt::time::sleep(Duration::from_millis(1)).await,
                Err(error) => panic!("{error}"),
            }
        }
        let mut relogged = 0;
        while log.metrics().segments < 6 || relogged < 12 {
            match append(true) {
                Ok(_) => relogged += 1,
                // The last segment is being made.
                Err(LogError::Busy) => assert!(log.room_within(Duration::from_secs(30)).await, "{:?}", log.metrics()),
                Err(error) => panic!("{error}"),
            }
            assert!(matches!(append(false), Err(LogError::Busy)), "what is kept is kept");
        }
        assert!(log.wants_flush() && log.disk_bytes() <= u64::from(SEGMENT) * 6, "{:?}", log.metrics());
        log.clean(SlotId(7), log.position());
        while let Err(error) = append(false) {
            assert!(matches!(error, LogError::Busy), "{error}");
            rt::time::sleep(Duration::from_millis(1)).await;
        }
        log.close().await.expect("closed");
        let found = numbers(&scratch).await;
        assert_eq!(found.last(), Some(&(written - 1)));
    });
}

#[test]
fn large_mutations_are_refused_and_appends_to_a_full_buffer_wait() {
    rt::block_on(async {
        let scratch = Scratch::new("log-large");
        let config = CommitlogConfig { buffer_limit: 4000, ..config(&scratch, SyncMode::Batch) };
        let log = Commitlog::open(config).await.expect("opened");
        let schema = schema(1, 1);
        let large = log.append(&schema, SlotId(0), &mutation(&schema, 0, SEGMENT as usize / 2));
        assert!(matches!(large, Err(LogError::TooLarge { max, .. }) if max == SEGMENT as usize / 2), "{large:?}");
        let mut appended = 0;
        let busy = loop {
            match log.append(&schema, SlotId(0), &mutation(&schema, appended, 1000)) {
                Ok(_) => appended += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(busy, LogError::Busy) && (2..5).contains(&appended), "{appended}: {busy}");
        let mutation = mutation(&schema, appended, 1000);
        let entry = Entry { schema: &schema, slot: SlotId(0), mutation: &mutation };
        let position = log.append_wait(&[entry]).await.expect("room comes").position;
        log.acknowledged(position).await.expect("acknowledged");
        log.abandon().await;
        assert_eq!(numbers(&scratch).await, (0..=appended).collect::<Vec<_>>());
    });
}

/// While the reserved disk space is released for a start, the log takes none of it. Its first
/// segment has the minimum length. It gets a second segment only when the disk has room for the
/// reserve and a segment.
#[test]
fn a_log_leaves_the_disk_reserve_alone() {
    rt::block_on(async {
        let scratch = Scratch::new("log-reserve");
        let reserve = |bytes| Some(DiskReserve::of(&scratch, bytes));
        let sizes = |run: &Path| {
            let files = std::fs::read_dir(run).expect("a run").map(|file| file.expect("an entry"));
            let segments =
                files.filter(|file| manifest::segment_of_name(&file.file_name().to_string_lossy()).is_some());
            let mut sizes: Vec<u64> = segments.map(|file| file.metadata().expect("there").len()).collect();
            sizes.sort();
            sizes
        };
        let (_, free) = rt::fs::disk_space(&scratch).await.expect("space");
        let wanting = CommitlogConfig { reserve: reserve(free * 2), ..config(&scratch, SyncMode::Batch) };
        let log = Commitlog::open(wanting).await.expect("it opens all the same");
        append(&log, 0, 1, 10).await;
        rt::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(sizes(&log.run_dir), [4096], "{free} bytes are free");
        log.abandon().await;

        let has_it = CommitlogConfig { reserve: reserve(8192), ..config(&scratch, SyncMode::Batch) };
        let log = Commitlog::open(has_it).await.expect("opened");
        append(&log, 0, 2, 10).await;
        // A segment's file is created first and gets its length then.
        for _ in 0..10_000 {
            if sizes(&log.run_dir) == [u64::from(SEGMENT); 2] {
                break;
            }
            rt::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(sizes(&log.run_dir), [u64::from(SEGMENT); 2]);
        log.abandon().await;
        assert_eq!(numbers(&scratch).await, [1, 2]);
    });
}
