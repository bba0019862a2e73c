//! The frame of a run: workers that send the requests of a workload, warm-up, end, report.

use crate::Error;
use crate::meter::Meter;
use crate::options::Settings;
use crate::schedule::{Schedule, Turn};
use crate::tally::{Kind, Outcome, Report, Tally};
use crate::value::{Random, hash};
use scylla::client::session::Session;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

/// How often a request is tried whose rows must all be touched.
pub const ATTEMPTS: u32 = 5;

/// What the requests of a run do.
pub trait Workload: Send + Sync + 'static {
    /// What one or more requests are about: a row, a partition, a token range.
    type Item: Send;

    /// The next item of a worker; None when there is nothing left to do.
    fn next(&self, worker: u64, random: &mut Random) -> Option<Self::Item>;

    /// Sends one request. When the outcome says `more`, the same item is sent again.
    fn send(&self, session: &Session, item: &mut Self::Item) -> impl Future<Output = Result<Outcome, Error>> + Send;

    fn kind(&self, item: &Self::Item) -> Kind;

    /// Runs with different numbers make different random choices.
    fn round(&self) -> u64 {
        0
    }

    /// How often a request of an item is tried before the item is given up.
    fn attempts(&self) -> u32;

    /// The wait after a failed request, so that a dead server does not make the workers spin.
    fn pause(&self, failures: u32) -> Duration {
        Duration::from_millis(20) * failures
    }

    /// Counts an item that was given up; returns how many rows are missing because of it.
    fn give_up(&self, _item: Self::Item) -> u64 {
        0
    }
}

/// Numbers 0, 1, 2 and so on, shared by the workers.
#[derive(Default)]
pub struct Numbers(AtomicU64);

impl Numbers {
    pub fn take(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }
}

/// The state that the workers share.
struct Run<W> {
    session: Session,
    workload: Arc<W>,
    tally: Mutex<Tally>,
    schedule: Schedule,
    failures_in_row: AtomicU64,
    /// The run ends after so many failures in a row; 0 for never.
    failures_allowed: u64,
    stopped: watch::Sender<bool>,
    /// Why it stopped.
    reason: OnceLock<&'static str>,
}

impl<W: Workload> Run<W> {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no worker panicked")
    }

    fn stop(&self, reason: &'static str) {
        let _ = self.reason.set(reason);
        self.stopped.send_replace(true);
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Waits for a worker's next turn. Returns when its latency counts from, or None: the run ends.
    async fn turn(&self) -> Option<Instant> {
        if self.is_stopped() {
            return None;
        }
        match self.schedule.take(Instant::now()) {
            Turn::Now(began) => Some(began),
            Turn::At(time) => {
                let mut stopped = self.stopped.subscribe();
                tokio::select! {
                    () = sleep_until(time.into()) => Some(Instant::now()),
                    _ = stopped.wait_for(|stopped| *stopped) => None,
                }
            }
        }
    }

    fn succeeded(&self, kind: Kind, latency: Duration, outcome: &Outcome) {
        self.failures_in_row.store(0, Relaxed);
        self.tally().success(kind, latency, outcome);
    }

    fn failed(&self, error: &Error) {
        self.tally().failure(&error.to_string());
        let in_row = self.failures_in_row.fetch_add(1, Relaxed) + 1;
        if self.failures_allowed > 0 && in_row >= self.failures_allowed {
            self.stop("errors");
        }
    }
}

/// The random choices of a worker in a round.
fn choices(seed: u64, round: u64, worker: u64) -> Random {
    Random::new(hash(seed) ^ round, worker)
}

async fn worker<W: Workload>(run: Arc<Run<W>>, number: u64, seed: u64) {
    let mut random = choices(seed, run.workload.round(), number);
    let (mut unfinished, mut failures) = (None, 0);
    while let Some(began) = run.turn().await {
        let Some(mut item) = unfinished.take().or_else(|| run.workload.next(number, &mut random)) else {
            return;
        };
        match run.workload.send(&run.session, &mut item).await {
            Ok(outcome) => {
                failures = 0;
                run.succeeded(run.workload.kind(&item), began.elapsed(), &outcome);
                unfinished = outcome.more.then_some(item);
            }
            Err(error) => {
                run.failed(&error);
                failures += 1;
                let pause = run.workload.pause(failures);
                if failures < run.workload.attempts() {
                    unfinished = Some(item);
                } else {
                    let missing = run.workload.give_up(item);
                    run.tally().missing(missing);
                    failures = 0;
                }
                sleep(pause).await;
            }
        }
    }
}

/// Runs a workload to its end and reports.
pub async fn run<W: Workload>(
    session: Session,
    settings: &Settings,
    failures_allowed: u64,
    workload: Arc<W>,
) -> Result<Report, Error> {
    let options = &settings.options;
    let run = Arc::new(Run {
        session,
        workload,
        tally: Mutex::new(Tally::new()),
        schedule: Schedule::new(options.rate, Instant::now()),
        failures_in_row: AtomicU64::new(0),
        failures_allowed,
        stopped: watch::Sender::new(false),
        reason: OnceLock::new(),
    });
    let mut workers = JoinSet::new();
    for number in 0..settings.concurrency {
        workers.spawn(worker(run.clone(), number, options.seed));
    }
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let [terminate, interrupt] = &mut signals;
    let warmup = Duration::from_secs(if settings.timed { options.warmup } else { 0 });
    let mut phase = Phase::begin(&options.server_pid);
    let mut warm = warmup.is_zero();
    let begin = Instant::now();
    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Skip);
    second.tick().await;
    // The ticks may be some milliseconds early or late.
    let reached = |since: Instant, seconds: Duration| since.elapsed() + Duration::from_millis(500) > seconds;
    loop {
        tokio::select! {
            joined = workers.join_next() => match joined {
                Some(worker) => worker?,
                None => break,
            },
            _ = second.tick() => {
                if !warm && reached(begin, warmup) {
                    *run.tally() = Tally::new();
                    phase = Phase::begin(&options.server_pid);
                    warm = true;
                } else if warm && !run.is_stopped() {
                    phase.tick(run.tally().ops());
                    if settings.timed && reached(phase.start, Duration::from_secs(options.duration)) {
                        run.stop("duration");
                    }
                }
            }
            _ = terminate.recv() => run.stop("signal"),
            _ = interrupt.recv() => run.stop("signal"),
        }
    }
    let mut report = Report::new();
    run.tally().report(phase.start.elapsed().as_secs_f64(), &mut report);
    phase.meter.report(&mut report);
    report.insert("ended_by".into(), json!(run.reason.get().unwrap_or(&"completion")));
    report.insert("ops_each_second".into(), json!(phase.each_second));
    Ok(report)
}

/// The measured part of a run.
struct Phase {
    start: Instant,
    meter: Meter,
    each_second: Vec<u64>,
    ops: u64,
}

impl Phase {
    fn begin(servers: &[String]) -> Self {
        Phase { start: Instant::now(), meter: Meter::start(servers), each_second: Vec::new(), ops: 0 }
    }

    fn tick(&mut self, ops: u64) {
        self.each_second.push(ops - self.ops);
        self.ops = ops;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise each round of a ledger would write the keys of the round before.
    #[test]
    fn workers_and_rounds_choose_differently() {
        let mut firsts: Vec<u64> =
            (0..10).flat_map(|round| (0..64).map(move |worker| choices(1, round, worker).next())).collect();
        firsts.sort();
        firsts.dedup();
        assert_eq!(firsts.len(), 640);
        assert_eq!(choices(1, 2, 3).next(), choices(1, 2, 3).next());
    }
}
