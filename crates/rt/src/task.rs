//! Tasks of a shard: spawning, yielding, background work.
//!
//! A task never leaves its shard. Long loops call [`maybe_yield`] every few dozen items; work that nobody waits for runs
//! inside [`background`], which keeps it to its share while foreground tasks are ready.

use crate::{ctx, executor};
use async_task::FallibleTask;
use rand::Rng;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// How long one poll may run before [`maybe_yield`] yields.
const POLL_BUDGET: Duration = Duration::from_micros(200);
/// What a poll is taken to cost where time is simulated.
pub(crate) const SIMULATED_POLL: Duration = Duration::from_micros(100);
/// The longest debt background work can run up, so that one long poll does not lock it out for seconds.
const MAX_DEBT: Duration = Duration::from_millis(50);

/// The task was aborted, or its shard went away, before it finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted;

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("task aborted")
    }
}

impl std::error::Error for Aborted {}

/// A spawned task. Dropping it lets the task run on; awaiting it gives the task's output.
#[must_use = "dropping the handle detaches the task; say `.detach()` if that is meant"]
pub struct Task<T> {
    state: RefCell<State<T>>,
}

enum State<T> {
    Running(FallibleTask<T, executor::Place>),
    Aborting(Pin<Box<dyn Future<Output = Option<T>>>>),
    Taken,
}

impl<T> Unpin for Task<T> {}

impl<T: 'static> Task<T> {
    /// Lets the task run on without a handle (the same as dropping it).
    pub fn detach(self) {}

    /// Drops the task's future at its next turn. Awaiting the handle then waits for that, and gives `Err(Aborted)`
    /// unless the task had already finished.
    pub fn abort(&self) {
        let state = self.state.replace(State::Taken);
        let next = match state {
            State::Running(task) => {
                let mut cancel: Pin<Box<dyn Future<Output = Option<T>>>> = Box::pin(task.cancel());
                // The first poll is what asks for the cancellation.
                match cancel.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(out) => State::Aborting(Box::pin(std::future::ready(out))),
                    Poll::Pending => State::Aborting(cancel),
                }
            }
            other => other,
        };
        *self.state.borrow_mut() = next;
    }

    /// Whether the task has ended (or was aborted).
    pub fn is_finished(&self) -> bool {
        match &*self.state.borrow() {
            State::Running(task) => task.is_finished(),
            State::Aborting(_) | State::Taken => true,
        }
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Aborted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let state = self.get_mut().state.get_mut();
        let out = match state {
            State::Running(task) => Pin::new(task).poll(cx),
            State::Aborting(cancel) => cancel.as_mut().poll(cx),
            State::Taken => panic!("Task polled after it was ready"),
        };
        out.map(|out| {
            *state = State::Taken;
            out.ok_or(Aborted)
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let State::Running(task) = std::mem::replace(self.state.get_mut(), State::Taken) {
            task.detach();
        }
    }
}

/// Runs `f` as a task of this shard.
#[track_caller]
pub fn spawn<F>(f: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let place = Location::caller();
    let task = ctx::with(|c| executor::spawn(c, place, f));
    Task { state: RefCell::new(State::Running(task.fallible())) }
}

/// Lets every other ready task run once.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Yields when the running poll has used up its time. One clock read: call it every few dozen items of a long loop.
#[inline]
pub async fn maybe_yield() {
    if is_time_to_yield() {
        yield_now().await;
    }
}

/// Whether the running poll has used up its time, for loops that yield by returning `Pending` themselves.
pub fn is_time_to_yield() -> bool {
    ctx::try_with(|c| {
        if c.clock.is_real() {
            return c.executor.poll_started.get().is_some_and(|started| started.elapsed() >= POLL_BUDGET);
        }
        let asked = c.executor.yields_asked.get() + 1;
        c.executor.yields_asked.set(asked);
        asked >= 8 || c.rng.borrow_mut().gen_ratio(1, 8)
    })
    .unwrap_or(false)
}

/// Runs `f` as background work: its polls are timed, run one at a time, and kept to the shard's background share while
/// foreground tasks wait; when the shard is idle it has all of it.
pub async fn background<F: Future>(f: F) -> F::Output {
    let mut f = pin!(f);
    let mut turn = Turn::default();
    poll_fn(move |cx| {
        let shard = ctx::current();
        let governor = &shard.executor.background;
        if !turn.granted(governor, shard.executor.has_ready(), cx) {
            return Poll::Pending;
        }
        let real = shard.clock.is_real();
        let started = Instant::now();
        let out = f.as_mut().poll(cx);
        let took = if real { started.elapsed() } else { SIMULATED_POLL };
        shard.counters.background_nanos.add(took.as_nanos() as u64);
        governor.background_ran(took);
        out
    })
    .await
}

/// Sets the part of this shard's time, in 1/1000, that background work gets while foreground work waits.
pub fn set_background_share(permille: u32) {
    ctx::with(|c| c.executor.background.permille.set(bounded(permille)));
}

/// Neither side may starve.
fn bounded(permille: u32) -> u32 {
    permille.clamp(1, 999)
}

/// A background future's place in the governor's queue. Leaves it when dropped.
#[derive(Default)]
struct Turn {
    ticket: Option<Rc<Ticket>>,
}

struct Ticket {
    waker: RefCell<Waker>,
    state: Cell<TicketState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TicketState {
    Waiting,
    Granted,
    Abandoned,
}

impl Turn {
    fn granted(&mut self, governor: &Governor, foreground_waits: bool, cx: &mut Context<'_>) -> bool {
        if let Some(ticket) = &self.ticket {
            if ticket.state.get() == TicketState::Granted {
                self.ticket = None;
                return true;
            }
            ticket.waker.borrow_mut().clone_from(cx.waker());
            return false;
        }
        if !governor.has_waiting() && (!foreground_waits || !governor.in_debt()) {
            return true;
        }
        let ticket =
            Rc::new(Ticket { waker: RefCell::new(cx.waker().clone()), state: Cell::new(TicketState::Waiting) });
        governor.waiting.borrow_mut().push_back(ticket.clone());
        self.ticket = Some(ticket);
        false
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            ticket.state.set(TicketState::Abandoned);
        }
    }
}

/// Decides when background futures may be polled.
pub(crate) struct Governor {
    waiting: RefCell<VecDeque<Rc<Ticket>>>,
    /// Nanoseconds of background time that foreground time has not paid for yet.
    debt: Cell<u64>,
    /// Background time of the running poll, so that it is not counted as foreground too.
    in_poll: Cell<u64>,
    permille: Cell<u32>,
}

impl Governor {
    pub fn new(permille: u32) -> Self {
        let permille = Cell::new(bounded(permille));
        Self { waiting: RefCell::default(), debt: Cell::new(0), in_poll: Cell::new(0), permille }
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    fn in_debt(&self) -> bool {
        self.debt.get() > 0
    }

    fn background_ran(&self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        self.in_poll.set(self.in_poll.get() + nanos);
        self.debt.set((self.debt.get() + nanos).min(MAX_DEBT.as_nanos() as u64));
    }

    /// Accounts one poll of the executor; what background work took of it is taken out.
    pub fn foreground_ran(&self, took: Duration) {
        let foreground = (took.as_nanos() as u64).saturating_sub(self.in_poll.replace(0));
        let permille = u64::from(self.permille.get());
        let paid = foreground * permille / (1000 - permille);
        self.debt.set(self.debt.get().saturating_sub(paid));
    }

    /// Lets the first waiter run. False when there is none.
    pub fn release(&self) -> bool {
        loop {
            let Some(ticket) = self.waiting.borrow_mut().pop_front() else { return false };
            if ticket.state.get() == TicketState::Waiting {
                ticket.state.set(TicketState::Granted);
                let waker = ticket.waker.borrow().clone();
                waker.wake();
                return true;
            }
        }
    }

    /// Lets the first waiter run although foreground tasks are ready, if background work has its share to come.
    pub fn release_if_due(&self) {
        if !self.in_debt() {
            self.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_give_their_output_and_abort() {
        crate::block_on(async {
            assert_eq!(spawn(async { 5 }).await, Ok(5));
            let guard = crate::sync::Gate::new();
            let inside = guard.enter().expect("open");
            let task = spawn(async move {
                let _inside = inside;
                std::future::pending::<u32>().await
            });
            yield_now().await;
            task.abort();
            assert_eq!(task.await, Err(Aborted));
            assert_eq!(guard.inside(), 0);
        });
    }

    #[test]
    fn dropping_the_handle_detaches() {
        crate::block_on(async {
            let (sender, receiver) = crate::sync::oneshot::channel();
            drop(spawn(async move {
                yield_now().await;
                sender.send(9).expect("receiver waits");
            }));
            assert_eq!(receiver.await, Ok(9));
        });
    }

    #[test]
    fn block_on_drops_what_is_left() {
        struct Flag(Rc<Cell<bool>>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let dropped = Rc::new(Cell::new(false));
        let flag = Flag(dropped.clone());
        crate::block_on(async {
            spawn(async move {
                let _flag = flag;
                std::future::pending::<()>().await;
            })
            .detach();
            yield_now().await;
        });
        assert!(dropped.get());
    }

    fn spin(time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn long_polls_are_counted_and_yielding_loops_are_not() {
        crate::block_on(async {
            let before = crate::metrics::snapshot().stalls;
            spawn(async { spin(Duration::from_millis(2)) }).await.expect("ran");
            yield_now().await;
            let stalled = crate::metrics::snapshot();
            // More, where the thread loses its CPU in the midst of another poll.
            assert!(stalled.stalls > before);
            assert!(stalled.longest_poll >= Duration::from_millis(2));
            let other = spawn(async {
                let mut polls = 0;
                for _ in 0..20 {
                    yield_now().await;
                    polls += 1;
                }
                polls
            });
            for _ in 0..400 {
                spin(Duration::from_micros(20));
                maybe_yield().await;
            }
            assert!(other.is_finished(), "the loop let the other task run");
        });
    }

    /// The governor by itself, with costs that are given and not measured.
    #[test]
    fn shares_are_what_was_set() {
        let (slow, quick) = (Duration::from_micros(100), Duration::from_micros(50));
        for permille in [50, 200, 500] {
            let governor = Governor::new(permille);
            let (mut background, mut all) = (Duration::ZERO, Duration::ZERO);
            while all < Duration::from_secs(1) {
                if governor.in_debt() {
                    governor.foreground_ran(quick);
                    all += quick;
                } else {
                    // A poll that did background work is accounted as one.
                    governor.background_ran(slow);
                    governor.foreground_ran(slow);
                    (background, all) = (background + slow, all + slow);
                }
            }
            let part = background.as_secs_f64() / all.as_secs_f64() * 1000.0;
            assert!((part - f64::from(permille)).abs() < 3.0, "of a share of {permille} it got {part:.1}");
        }
    }

    /// On a shard, where time is measured. A thread that loses its CPU in the midst of a poll is charged for it, so what is judged holds
    /// however often that happens.
    #[test]
    fn background_keeps_to_its_share() {
        const ROUNDS: usize = 4000;
        /// Polls of others between the end of a debt and the next poll of background work: a turn of them, and those that are in the queue.
        const UNTIL_SEEN: usize = 12;
        crate::block_on(async {
            let before = crate::metrics::snapshot();
            let done = Rc::new(Cell::new(false));
            let polls: Rc<RefCell<Vec<Duration>>> = Rc::default();
            let slow = {
                let (done, polls) = (done.clone(), polls.clone());
                spawn(background(async move {
                    while !done.get() {
                        let started = Instant::now();
                        spin(Duration::from_micros(100));
                        polls.borrow_mut().push(started.elapsed().min(MAX_DEBT));
                        yield_now().await;
                    }
                }))
            };
            let busy: Vec<_> = (0..2)
                .map(|_| {
                    spawn(async {
                        for _ in 0..ROUNDS {
                            spin(Duration::from_micros(50));
                            yield_now().await;
                        }
                    })
                })
                .collect();
            for task in busy {
                task.await.expect("not aborted");
            }
            let (polls, own) = (polls.borrow().clone(), crate::metrics::snapshot().background - before.background);
            done.set(true);
            slow.await.expect("not aborted");
            // Turns are counted when they have ended.
            crate::time::sleep(Duration::from_millis(1)).await;
            let after = crate::metrics::snapshot();
            // It runs without debts only, and a quarter of what others take pays for a fifth of all.
            let charged = polls.iter().sum::<Duration>();
            let others = (after.busy - before.busy).saturating_sub(after.background - before.background);
            assert!(charged <= others / 4 + MAX_DEBT, "{charged:?} beside {others:?} of others");
            // A poll of others takes 50 us and more, so debts are paid after so many of them at the latest.
            let due = polls.len() * UNTIL_SEEN + (own.as_micros() / 50) as usize * 4;
            assert!(due >= 2 * ROUNDS, "{} polls of {own:?} in all, while others had {}", polls.len(), 2 * ROUNDS);
        });
    }
}
