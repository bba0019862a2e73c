//! Tasks of a shard: spawning, yielding, scheduling groups.
//!
//! A task never leaves its shard. Long loops call [`maybe_yield`] every few dozen items. Every task
//! belongs to a [`Group`]: by default, the group of the task that spawned it. [`spawn_in`] and
//! [`in_group`] choose another group.

pub use crate::group::Group;
use crate::{ctx, executor};
use async_task::FallibleTask;
use rand::Rng;
use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long one poll of a group may run before [`maybe_yield`] yields. A statement that arrives
/// waits for the running poll: so polls of groups that are not urgent are shorter.
fn poll_budget(group: Group) -> Duration {
    Duration::from_micros(if group.is_urgent() { 200 } else { 100 })
}

/// The task was aborted, or its shard went away, before it finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted;

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("task aborted")
    }
}

impl std::error::Error for Aborted {}

/// A spawned task. Dropping the handle detaches the task; awaiting it returns the task's output.
#[must_use = "dropping the handle detaches the task; call `.detach()` if that is intended"]
pub struct Task<T> {
    state: RefCell<State<T>>,
}

enum State<T> {
    Running(FallibleTask<T, executor::TaskLabel>),
    Aborting(Pin<Box<dyn Future<Output = Option<T>>>>),
    Taken,
}

impl<T> Unpin for Task<T> {}

impl<T: 'static> Task<T> {
    /// Detaches the task (the same as dropping the handle).
    pub fn detach(self) {}

    /// Drops the task's future at its next turn. Awaiting the handle then waits for that, and
    /// returns `Err(Aborted)` unless the task had already finished.
    pub fn abort(&self) {
        let state = self.state.replace(State::Taken);
        let next = match state {
            State::Running(task) => {
                let mut cancel: Pin<Box<dyn Future<Output = Option<T>>>> = Box::pin(task.cancel());
                // The first poll requests the cancellation.
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

/// Runs `f` as a task of this shard, in the group of the running task.
#[track_caller]
pub fn spawn<F>(f: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let location = Location::caller();
    let task = ctx::with(|c| executor::spawn(c, location, c.executor.group(), f));
    Task { state: RefCell::new(State::Running(task.fallible())) }
}

/// Runs `f` as a task of this shard, in a group.
#[track_caller]
pub fn spawn_in<F>(group: Group, f: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let location = Location::caller();
    let task = ctx::with(|c| executor::spawn(c, location, group, f));
    Task { state: RefCell::new(State::Running(task.fallible())) }
}

/// The group of the running task.
pub fn group() -> Group {
    ctx::with(|c| c.executor.group())
}

/// Moves the running task to a group, from its next poll on.
pub fn move_to(group: Group) {
    ctx::with(|c| c.executor.move_running_to(group));
}

/// Runs `f` with its task in a group. Afterwards the task returns to its previous group.
///
/// The whole task moves, with everything else that it polls meanwhile. So `f` must be all that the
/// task does, not one of several futures.
pub async fn in_group<F: Future>(group: Group, f: F) -> F::Output {
    let came_from = self::group();
    if came_from == group {
        return f.await;
    }
    let visit = Visit { came_from, key: ctx::with(|c| c.executor.running_key()) };
    move_to(group);
    // The next poll is the first one in the new group.
    yield_now().await;
    let out = f.await;
    drop(visit);
    out
}

/// A task's stay in another group. If the task itself drops it, the stay ends.
struct Visit {
    came_from: Group,
    key: Option<usize>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        ctx::try_with(|c| {
            if c.executor.running_key() == self.key {
                c.executor.move_running_to(self.came_from);
            }
        });
    }
}

/// Sets the part of this shard's time, in 1/1000, that a group gets while statements wait. At least
/// 1, at most 999.
pub fn set_share(group: Group, permille: u32) {
    ctx::with(|c| c.executor.clock.set_shares(group, shares(permille)));
}

/// The shares that are this part of the total, in 1/1000, next to the shares of statements. Neither
/// side may starve.
fn shares(permille: u32) -> u32 {
    let permille = permille.clamp(1, 999);
    (crate::group::STATEMENT_SHARES * permille / (1000 - permille)).max(1)
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

/// Yields if the running poll has used up its time. Costs one clock read: call it every few dozen
/// items of a long loop.
#[inline]
pub async fn maybe_yield() {
    if is_time_to_yield() {
        yield_now().await;
    }
}

/// Whether the running poll may do more I/O. If not, sockets answer `Pending` although they may be
/// ready, and wake the task at once.
pub fn may_poll_io() -> bool {
    tokio::task::coop::has_budget_remaining()
}

/// Whether the running poll has used up its time. For loops that yield by returning `Pending`
/// themselves.
pub fn is_time_to_yield() -> bool {
    ctx::try_with(|c| {
        if c.clock.is_real() {
            return c
                .executor
                .poll_started
                .get()
                .is_some_and(|started| started.elapsed() >= poll_budget(c.executor.group()));
        }
        let asked = c.executor.yields_asked.get() + 1;
        c.executor.yields_asked.set(asked);
        asked >= 8 || c.rng.borrow_mut().gen_ratio(1, 8)
    })
    .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use tokio::time::Instant;

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
            // More if the thread loses its CPU during another poll.
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

    /// Runs on a shard, where time is measured. A poll during which the thread loses its CPU is
    /// charged for that time. So the checks use the number of polls and the charged time, and hold
    /// however often that happens.
    #[test]
    fn a_group_keeps_to_its_share_while_statements_wait() {
        const ROUNDS: usize = 4000;
        /// The time by which a group may lag after a long poll, plus a complete turn of the others.
        const SLACK: Duration = Duration::from_millis(60);
        crate::block_on(async {
            set_share(Group::Maintenance, 200);
            let done = Rc::new(Cell::new(false));
            let slow = spawn_in(Group::Maintenance, {
                let done = done.clone();
                async move {
                    assert_eq!(group(), Group::Maintenance);
                    while !done.get() {
                        spin(Duration::from_micros(100));
                        yield_now().await;
                    }
                }
            });
            let before = crate::metrics::snapshot();
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
            let after = crate::metrics::snapshot();
            done.set(true);
            slow.await.expect("not aborted");
            let took = |group: Group| after.group(group).runtime - before.group(group).runtime;
            let (maintenance, statements) = (took(Group::Maintenance), took(Group::Statement));
            let longest = after.longest_poll;
            // Its share is a fifth (`fair_clock` has the exact test). Processes beside the test
            // interrupt polls, and an interrupted poll can take the time of several turns.
            assert!(maintenance <= statements / 4 + SLACK + longest, "{maintenance:?} beside {statements:?}");
            // Statements use up their credit before the other group gets its share.
            let least = statements.saturating_sub(Duration::from_millis(200)) / 20;
            assert!(maintenance + SLACK + longest >= least, "{maintenance:?} beside {statements:?}");
            assert!(after.group(Group::Maintenance).task_wait > Duration::ZERO);
        });
    }

    #[test]
    fn tasks_inherit_groups_and_visit_others() {
        crate::block_on(async {
            assert_eq!(group(), Group::Statement);
            let inherited = spawn_in(Group::Scan, async { spawn(async { group() }).await });
            assert_eq!(inherited.await, Ok(Ok(Group::Scan)));
            let inside = in_group(Group::Maintenance, async {
                yield_now().await;
                in_group(Group::Maintenance, async {}).await;
                group()
            });
            assert_eq!(inside.await, Group::Maintenance);
            yield_now().await;
            assert_eq!(group(), Group::Statement);
            // A dropped stay ends too.
            let given_up =
                crate::time::timeout(Duration::from_millis(1), in_group(Group::Scan, std::future::pending::<()>()));
            assert!(given_up.await.is_err());
            yield_now().await;
            assert_eq!(group(), Group::Statement);
        });
    }

    #[test]
    fn a_call_runs_in_the_group_of_its_caller() {
        let config = crate::MachineConfig { shards: 2, overprovisioned: true, ..Default::default() };
        let machine = crate::Machine::start(config, |shard| async move {
            if shard.0 == 0 {
                for wanted in [Group::Control, Group::Statement, Group::Maintenance] {
                    let called = spawn_in(wanted, crate::shard::call(crate::ShardId(1), || async { group() }));
                    assert_eq!(called.await, Ok(wanted));
                }
            }
        });
        machine.expect("threads").join();
    }

    #[test]
    fn shares_are_parts_of_the_time_beside_statements() {
        for (permille, expected) in [(0, 1), (200, 250), (500, 1000), (800, 4000), (1000, 999_000)] {
            assert_eq!(shares(permille), expected);
        }
    }
}
