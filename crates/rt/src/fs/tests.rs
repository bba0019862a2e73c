//! Files on the real disk, by io_uring and by helper threads.

use super::io::Io;
use super::*;
use bytes::Bytes;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use test_support::Scratch;

/// Bytes that encode their position.
fn pattern(start: u64, len: usize) -> Vec<u8> {
    (start..start + len as u64).map(|i| (i ^ (i >> 8) ^ (i >> 16).wrapping_mul(31)) as u8).collect()
}

async fn patterned(path: &Path, len: usize) -> File {
    let mut writer = SequentialWriter::create(path, IoClass::Background).await.expect("create");
    let data = pattern(0, len);
    for piece in data.chunks(7001) {
        writer.append(piece).await.expect("append");
    }
    assert_eq!(writer.position(), len as u64);
    let (written, file) = writer.finish().await.expect("finish");
    assert_eq!(written, len as u64);
    file
}

async fn round_trips(dir: &Path) {
    for len in [0usize, 1, 511, 4096, 5000, (256 << 10) + 17, 3 << 20] {
        let path = dir.join(format!("seq-{len}"));
        patterned(&path, len).await;
        assert_eq!(std::fs::read(&path).expect("read"), pattern(0, len), "length {len}");
        assert_eq!(metadata(&path).await.expect("metadata").len, len as u64);
    }
    let path = dir.join("seq-3145728");
    for direct in [true, false] {
        let options = OpenOptions { read: true, direct, ..OpenOptions::default() };
        let file = open(&path, &options).await.expect("open");
        for (offset, len) in [(0u64, 1usize), (1, 4095), (4095, 2), (5000, 100_000), (3 << 20, 10), ((3 << 20) - 5, 50)]
        {
            let got = file.read_at(offset, len, IoClass::Foreground).await.expect("read");
            let want = pattern(offset, len.min(((3u64 << 20) - offset) as usize));
            assert_eq!(&got[..], &want[..], "offset {offset} len {len} direct {direct}");
        }
    }

    let path = dir.join("mixed");
    let options = OpenOptions { direct: true, ..OpenOptions::create_new() };
    let file = open(&path, &options).await.expect("create");
    assert!(open(&path, &options).await.is_err(), "create_new finds the file");
    file.allocate(1 << 20).await.expect("allocate");
    assert_eq!(file.len().await.expect("len"), 0);
    let data = pattern(0, 20_000);
    for (at, len) in [(0usize, 8192usize), (8192, 100), (8292, 3996), (12288, 4096), (16384, 3616)] {
        file.write_at(at as u64, data[at..at + len].to_vec(), IoClass::Log).await.expect("write");
    }
    file.sync_data().await.expect("sync");
    assert_eq!(&file.read_at(0, 30_000, IoClass::Foreground).await.expect("read")[..], &data[..]);
    file.set_len(10).await.expect("cut");
    assert_eq!(read(&path).await.expect("read"), data[..10]);
}

async fn names(dir: &Path) {
    let deep = dir.join("a/b");
    create_dir_all(&deep).await.expect("create");
    write_durably(&deep.join("x"), b"one").await.expect("write");
    write_durably(&deep.join("x"), b"three").await.expect("write");
    assert_eq!(read(&deep.join("x")).await.expect("read"), b"three");
    hard_link(&deep.join("x"), &deep.join("y")).await.expect("link");
    rename(&deep.join("y"), &deep.join("z")).await.expect("rename");
    let names: Vec<_> = read_dir(&deep).await.expect("list").into_iter().map(|e| (e.name, e.is_dir, e.len)).collect();
    assert_eq!(names, [("x".to_string(), false, 5), ("z".to_string(), false, 5)]);
    remove_file(&deep.join("x")).await.expect("remove");
    assert!(!is_there(&deep.join("x")).await.unwrap() && is_there(&deep).await.unwrap());
    remove_dir_all(&dir.join("a")).await.expect("remove");
    assert!(open(&deep.join("z"), &OpenOptions::read()).await.is_err());
    let lock = lock_file(&dir.join("lock")).await.expect("first");
    assert!(lock_file(&dir.join("lock")).await.is_err());
    drop(lock);
    lock_file(&dir.join("lock")).await.expect("freed");
    let lock = lock_dir(dir).await.expect("first");
    assert_eq!(lock_dir(dir).await.expect_err("held").kind(), std::io::ErrorKind::WouldBlock);
    drop(lock);
    lock_dir(dir).await.expect("freed");
    let (total, free) = disk_space(dir).await.expect("space");
    assert!(total >= free && free > 0);
}

#[test]
fn files_round_trip() {
    let scratch = Scratch::new("round");
    crate::block_on(async {
        if std::env::var_os("MESSINA_NO_IO_URING").is_some() {
            assert!(crate::ctx::with(|c| matches!(c.io, Io::Threads { .. })));
        }
        round_trips(&scratch).await;
        names(&scratch).await;
    });
}

/// A link counts as its target, one to nothing as an empty file. Removals take the link, and
/// nothing of its target.
#[test]
fn directories_are_listed_through_links() {
    let scratch = Scratch::new("links");
    crate::block_on(async {
        let (dir, elsewhere) = (scratch.join("dir"), scratch.join("elsewhere"));
        create_dir_all(&dir).await.expect("create");
        create_dir_all(&elsewhere.join("deep")).await.expect("create");
        write_durably(&elsewhere.join("deep/x"), b"three").await.expect("write");
        for (target, name) in [("deep", "a"), ("deep/x", "b"), ("nothing", "c")] {
            std::os::unix::fs::symlink(elsewhere.join(target), dir.join(name)).expect("linked");
        }
        std::os::unix::fs::symlink("d", dir.join("d")).expect("linked");
        let found = read_dir(&dir).await.expect("list");
        let found: Vec<_> = found.iter().map(|entry| (entry.name.as_str(), entry.is_dir, entry.len)).collect();
        assert_eq!(found, [("a", true, 0), ("b", false, 5), ("c", false, 0), ("d", false, 0)]);
        assert_eq!(read_dir(&dir.join("a")).await.expect("list").len(), 1);
        remove_dir_all(&dir.join("a")).await.expect("remove");
        remove_dir_all(&dir).await.expect("remove");
        assert!(!is_there(&dir).await.unwrap() && is_there(&elsewhere.join("deep/x")).await.unwrap());
    });
}

/// Runs `files_round_trip` again in a process that may not use io_uring.
#[test]
fn files_round_trip_without_io_uring() {
    let test = std::env::current_exe().expect("this test");
    let ran = Command::new(test)
        .args(["--exact", "fs::tests::files_round_trip"])
        .env("MESSINA_NO_IO_URING", "1")
        .output()
        .expect("runs");
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && told.contains("1 passed"), "{told}");
}

/// Polls a read often enough to start it, then drops it.
fn start_and_drop<F: Future>(f: F) {
    let mut f = pin!(f);
    assert!(matches!(f.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
}

#[test]
fn dropped_reads_leave_memory_alone() {
    let scratch = Scratch::new("dropped");
    crate::block_on(async {
        const LEN: usize = 4 << 20;
        let path = scratch.join("data");
        patterned(&path, LEN).await;
        let file = open(&path, &OpenOptions::read_direct()).await.expect("open");
        let tasks: Vec<_> = (0..16u64)
            .map(|seed| {
                let file = file.clone();
                crate::task::spawn(async move {
                    let mut at = seed * 7919;
                    for round in 0..60 {
                        at = (at * 1103 + 12345) % (LEN as u64 - 70_000);
                        let len = 1 + (at as usize * 31) % 65_000;
                        if round % 2 == 0 {
                            start_and_drop(file.read_at(at, len, IoClass::Background));
                            start_and_drop(file.read_at(at + 1, len, IoClass::Foreground));
                            // Memory that the kernel might still write to if the ring had released
                            // it.
                            std::hint::black_box(vec![0xA5u8; len]);
                        }
                        let got = file.read_at(at, len, IoClass::Foreground).await.expect("read");
                        assert_eq!(&got[..], &pattern(at, len)[..]);
                        let cut = crate::time::timeout(
                            std::time::Duration::from_micros(at % 300),
                            file.read_at(at, len, IoClass::Background),
                        )
                        .await;
                        if let Ok(got) = cut {
                            assert_eq!(&got.expect("read")[..], &pattern(at, len)[..]);
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("ran");
        }
        // Some operations are still in the kernel when the shard is torn down.
        for i in 0..100 {
            start_and_drop(file.read_at(i * 4096, 4096, IoClass::Foreground));
        }
    });
}

#[test]
fn background_has_its_own_depth() {
    let scratch = Scratch::new("depth");
    crate::block_on(async {
        let path = scratch.join("data");
        patterned(&path, 8 << 20).await;
        if !crate::ctx::with(|c| matches!(c.io, Io::Ring(_))) {
            return;
        }
        let file = open(&path, &OpenOptions::read_direct()).await.expect("open");
        let reads: Vec<_> = (0..100u64)
            .map(|i| {
                let file = file.clone();
                crate::task::spawn(async move { file.read_at(i * 65_536, 65_536, IoClass::Background).await })
            })
            .collect();
        crate::task::yield_now().await;
        crate::task::yield_now().await;
        let now = crate::metrics::snapshot();
        let background = now.of(IoClass::Background).clone();
        assert!(background.in_flight <= 16, "{} in flight", background.in_flight);
        for read in reads {
            assert_eq!(read.await.expect("ran").expect("read").len(), 65_536);
        }
        let after = crate::metrics::snapshot();
        assert_eq!((after.of(IoClass::Background).in_flight, after.of(IoClass::Background).queued), (0, 0));
    });
}

/// A request to an idle disk is submitted before other tasks have had their turns. Requests to a
/// busy disk are submitted in batches.
#[test]
fn an_idle_disk_gets_its_reads_in_the_middle_of_a_turn() {
    let scratch = Scratch::new("eager");
    crate::block_on(async {
        let path = scratch.join("data");
        patterned(&path, 1 << 20).await;
        if !crate::ctx::with(|c| matches!(c.io, Io::Ring(_))) {
            return;
        }
        let file = open(&path, &OpenOptions::read_direct()).await.expect("open");
        let before = crate::metrics::snapshot();
        let mut reads: Vec<_> =
            (0..64u64).map(|i| Box::pin(file.read_at(i * 4096, 4096, IoClass::Foreground))).collect();
        for read in &mut reads {
            let polled = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "completions are taken at the end of a turn");
        }
        let begun = crate::metrics::snapshot();
        let (in_kernel, queued) = (begun.of(IoClass::Foreground).in_flight, begun.of(IoClass::Foreground).queued);
        assert_eq!(in_kernel + queued, 64);
        assert!(queued < 4, "{queued} wait, {in_kernel} are in the kernel");
        let calls = begun.io_submits - before.io_submits;
        assert!((16..=24).contains(&calls), "{calls} system calls for 64 reads");
        for (i, read) in reads.into_iter().enumerate() {
            assert_eq!(&read.await.expect("read")[..], &pattern(i as u64 * 4096, 4096)[..]);
        }
    });
}

/// A buffered write that the kernel completes inline costs one system call and no further turn of
/// the reactor.
#[test]
fn an_inline_append_needs_no_wake() {
    let scratch = Scratch::new("append");
    crate::block_on(async {
        let record = Bytes::from(vec![7u8; 4096]);
        let mut seen = Vec::new();
        // The kernel may be short of clean pages, or the thread without its CPU, for a while. One
        // quiet moment is enough.
        for round in 0..60u64 {
            let path = scratch.join(format!("log{round}"));
            let file = open(&path, &OpenOptions::create_new()).await.expect("create");
            file.write_at(0, record.clone(), IoClass::Log).await.expect("write");
            let before = crate::metrics::snapshot();
            for i in 1..=100u64 {
                file.write_at(i * 4096, record.clone(), IoClass::Log).await.expect("write");
            }
            let after = crate::metrics::snapshot();
            assert_eq!(file.len().await.expect("len"), 101 * 4096);
            let cost = (after.io_submits - before.io_submits, after.turns - before.turns);
            if cost.0 == 100 && cost.1 == 0 {
                return;
            }
            seen.push(cost);
            crate::time::sleep(std::time::Duration::from_millis(10 * round)).await;
        }
        panic!("system calls and turns for 100 appends: {seen:?}");
    });
}

#[test]
fn several_files_are_looked_at_at_once() {
    let scratch = Scratch::new("at-once");
    std::fs::write(scratch.join("a"), pattern(0, 9000)).expect("written");
    std::fs::write(scratch.join("b"), "").expect("written");
    crate::block_on(async {
        let [a, b, gone] = ["a", "b", "gone"].map(|name| scratch.join(name));
        let (contents, lengths) = read_and_measure(vec![a.clone(), gone.clone(), b.clone()], vec![gone, a, b]).await;
        let contents: Vec<_> = contents.into_iter().map(Result::ok).collect();
        assert_eq!(contents, [Some(pattern(0, 9000)), None, Some(Vec::new())]);
        assert_eq!(lengths.into_iter().map(Result::ok).collect::<Vec<_>>(), [None, Some(9000), Some(0)]);
        assert_eq!(read(&scratch.join("a")).await.expect("read"), pattern(0, 9000));
    });
}

/// Opening a FIFO without a writer would block.
#[test]
fn a_fifo_in_the_place_of_a_file_is_refused_at_once() {
    let scratch = Scratch::new("fifo");
    let path = scratch.join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().expect("run").success());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        crate::block_on(async {
            let over = OpenOptions { write: true, create: true, truncate: true, ..OpenOptions::default() };
            let (mut small, _) = read_and_measure(vec![path.clone()], Vec::new()).await;
            let all = [
                read(&path).await.map(drop),
                small.pop().expect("asked for").map(drop),
                open(&path, &OpenOptions::read()).await.map(drop),
                open(&path, &OpenOptions::read_direct()).await.map(drop),
                open(&path, &over).await.map(drop),
                lock_file(&path).await.map(drop),
            ];
            let _ = tell.send(all.map(|one| one.expect_err("no file").to_string()));
        });
    });
    let errors = told.recv_timeout(std::time::Duration::from_secs(30)).expect("nothing waits");
    assert!(errors.iter().all(|error| error.contains("a FIFO")), "{errors:?}");
}
