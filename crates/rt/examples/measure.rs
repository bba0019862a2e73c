//! Measures the cost of the machine's parts. Prints one JSON line per case.

#![allow(clippy::disallowed_methods, reason = "compares rt with what it wraps")]

use rt::fs::{self, IoClass, OpenOptions, SequentialWriter};
use rt::time::{Duration, Instant};
use rt::{Machine, MachineConfig, ShardId, shard, task};
use std::future::Future;
use std::path::Path;
use std::sync::Mutex;

fn cpu() -> Duration {
    let mut total = Duration::ZERO;
    for entry in std::fs::read_dir("/proc/self/task").expect("procfs").flatten() {
        let stat = std::fs::read_to_string(entry.path().join("schedstat")).unwrap_or_default();
        let nanos = stat.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
        total += Duration::from_nanos(nanos);
    }
    total
}

async fn case<F: Future<Output = ()>>(name: &str, operations: u64, f: F) {
    let (cpu_before, before) = (cpu(), Instant::now());
    f.await;
    let (wall, cpu) = (before.elapsed(), cpu() - cpu_before);
    let per = |time: Duration| time.as_nanos() as f64 / operations as f64;
    println!(
        "{{\"case\":\"{name}\",\"operations\":{operations},\"cpu_ns\":{:.0},\"wall_ns\":{:.0},\"per_second\":{:.0}}}",
        per(cpu),
        per(wall),
        operations as f64 / wall.as_secs_f64()
    );
}

fn on_machine<Fut: Future<Output = ()> + 'static>(
    shards: usize,
    poll: Duration,
    main: impl FnOnce() -> Fut + Send + 'static,
) {
    let main = Mutex::new(Some(main));
    let machine = Machine::start(MachineConfig { shards, poll, ..MachineConfig::default() }, move |shard| {
        let main = (shard.0 == 0).then(|| main.lock().expect("not poisoned").take()).flatten();
        async move {
            if let Some(main) = main {
                main().await;
            }
        }
    })
    .expect("starts");
    machine.join();
}

async fn tasks() {
    const N: u64 = 2_000_000;
    case("own_shard_call", N, async {
        for i in 0..N {
            std::hint::black_box(shard::call(ShardId(0), move || async move { i }).await);
        }
    })
    .await;
    case("spawn_and_join", N / 4, async {
        for i in 0..N / 4 {
            std::hint::black_box(task::spawn(async move { i }).await.expect("ran"));
        }
    })
    .await;
    case("yield_now", N, async {
        for _ in 0..N {
            task::yield_now().await;
        }
    })
    .await;
    case("maybe_yield", N, async {
        for _ in 0..N {
            task::maybe_yield().await;
        }
    })
    .await;
    case("sleep_one_ms", 200, async {
        for _ in 0..200 {
            rt::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

async fn calls(callers: u64, each: u64, name: &str) {
    case(name, callers * each, async {
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                task::spawn(async move {
                    for i in 0..each {
                        std::hint::black_box(shard::call(ShardId(1), move || async move { i }).await);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("ran");
        }
    })
    .await;
}

async fn reads(dir: &Path, name: &str) {
    const SIZE: u64 = 1 << 30;
    const TASKS: u64 = 64;
    const EACH: u64 = 1000;
    let path = dir.join("data");
    let mut writer = SequentialWriter::create(&path, IoClass::Background).await.expect("create");
    let block = vec![7u8; 1 << 20];
    case(&format!("{name}_sequential_write_mib"), SIZE >> 20, async {
        for _ in 0..SIZE >> 20 {
            writer.append(&block).await.expect("append");
        }
        writer.finish().await.expect("finish");
    })
    .await;
    let file = fs::open(&path, &OpenOptions::read_direct()).await.expect("open");
    for (depth, name) in [(TASKS, format!("{name}_read_4k_depth_64")), (1, format!("{name}_read_4k_depth_1"))] {
        let each = if depth == 1 { EACH * 4 } else { EACH };
        case(&name, depth * each, async {
            let tasks: Vec<_> = (0..depth)
                .map(|_| {
                    let file = file.clone();
                    task::spawn(async move {
                        for _ in 0..each {
                            let at = rt::random::below(SIZE / 4096) * 4096;
                            let got = file.read_at(at, 4096, IoClass::Foreground).await.expect("read");
                            assert_eq!(got.len(), 4096);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("ran");
            }
        })
        .await;
    }
    fs::remove_file(&path).await.expect("remove");
}

async fn appends(dir: &Path) {
    const N: u64 = 20_000;
    for (class, name) in [(IoClass::Log, "log"), (IoClass::Foreground, "foreground")] {
        for len in [512usize, 4096, 32768] {
            let path = dir.join(format!("append-{len}-{name}"));
            let file = fs::open(&path, &OpenOptions::create_new()).await.expect("create");
            let record = bytes::Bytes::from(vec![1u8; len]);
            case(&format!("append_{name}_{len}"), N, async {
                for i in 0..N {
                    file.write_at(i * len as u64, record.clone(), class).await.expect("write");
                }
            })
            .await;
            fs::remove_file(&path).await.expect("remove");
        }
    }
}

/// CPU time of the thread with a name.
fn cpu_of(name: &str) -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").expect("procfs").flatten();
    let nanos = threads
        .filter(|t| std::fs::read_to_string(t.path().join("comm")).is_ok_and(|comm| comm.trim() == name))
        .filter_map(|t| std::fs::read_to_string(t.path().join("schedstat")).ok())
        .filter_map(|stat| stat.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    Duration::from_nanos(nanos)
}

const REQUEST: usize = 64;

async fn echo(mut stream: rt::net::TcpStream) {
    use rt::net::{AsyncReadExt, AsyncWriteExt};
    let mut buffer = vec![0u8; 64 << 10];
    while let Ok(n) = stream.read(&mut buffer).await
        && n > 0
    {
        if stream.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

/// Sends `batch` requests at a time on each of `connections`, and waits for all answers.
fn client(address: std::net::SocketAddr, connections: usize, batch: usize, rounds: usize) {
    use std::io::{Read, Write};
    let mut sockets: Vec<_> = (0..connections)
        .map(|_| {
            let socket = std::net::TcpStream::connect(address).expect("connect");
            socket.set_nodelay(true).expect("nodelay");
            socket
        })
        .collect();
    let mut buffer = vec![7u8; batch * REQUEST];
    for _ in 0..rounds {
        for socket in &mut sockets {
            socket.write_all(&buffer).expect("write");
        }
        for socket in &mut sockets {
            socket.read_exact(&mut buffer).expect("read");
        }
    }
}

/// An echo server on a shard, and the same on a bare tokio runtime.
fn sockets() {
    const ROUNDS: usize = 4000;
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    for (connections, batch) in [(16, 2), (4, 32)] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let machine = Machine::start(MachineConfig { overprovisioned: true, ..MachineConfig::default() }, move |_| {
            let sender = sender.clone();
            async move {
                let listener = rt::net::listen(local, Default::default()).await.expect("listen");
                sender.send(listener.local_addr().expect("address")).expect("asked");
                let stopping = shard::stopping();
                while let Some(accepted) = stopping.unless(listener.accept()).await {
                    task::spawn(echo(accepted.expect("accept").0)).detach();
                }
            }
        })
        .expect("starts");
        let shard_address = receiver.recv().expect("listens");
        let (sender, receiver) = std::sync::mpsc::channel();
        let bare = rt::side_thread::start("bare", move || async move {
            let listener = rt::net::listen(local, Default::default()).await.expect("listen");
            sender.send(listener.local_addr().expect("address")).expect("asked");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::task::spawn_local(echo(stream));
            }
        })
        .expect("starts");
        let bare_address = receiver.recv().expect("listens");
        for _ in 0..2 {
            for (name, address) in [("shard-0", shard_address), ("bare", bare_address)] {
                let (cpu, started) = (cpu_of(name), Instant::now());
                client(address, connections, batch, ROUNDS);
                let requests = (ROUNDS * connections * batch) as f64;
                println!(
                    "{{\"case\":\"echo_{connections}x{batch}\",\"server\":\"{name}\",\"server_cpu_ns\":{:.0},\"wall_ns\":{:.0}}}",
                    (cpu_of(name) - cpu).as_nanos() as f64 / requests,
                    started.elapsed().as_nanos() as f64 / requests
                );
            }
        }
        bare.stop();
        machine.stop();
        machine.join();
    }
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let wants = |name: &str| wanted.is_empty() || wanted == name;
    let dir = std::env::temp_dir().join(format!("messina-measure-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("temporary directory");
    if wants("tasks") {
        on_machine(1, Duration::ZERO, tasks);
    }
    if wants("calls") {
        for (poll, suffix) in [(0, ""), (50, "_polling_50us")] {
            on_machine(2, Duration::from_micros(poll), move || async move {
                calls(1, 20_000, &format!("call_one_at_a_time{suffix}")).await;
                calls(32, 20_000, &format!("call_32_callers{suffix}")).await;
                calls(256, 5_000, &format!("call_256_callers{suffix}")).await;
            });
        }
    }
    if wants("reads") {
        let dir = dir.clone();
        on_machine(1, Duration::ZERO, move || async move { reads(&dir, "ring").await });
    }
    if wants("sockets") {
        sockets();
    }
    if wants("appends") {
        let dir = dir.clone();
        on_machine(1, Duration::ZERO, move || async move { appends(&dir).await });
    }
    std::fs::remove_dir_all(&dir).expect("remove");
}
