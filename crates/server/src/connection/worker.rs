//! Workers: long-lived futures that run statements, one at a time.
//!
//! The loop of a connection gives a job to an idle worker, and polls it once within its own poll.
//! Most statements finish in this poll, without an allocation, a task or a wake. A worker that has
//! to wait moves into a task, finishes the job there, and returns to the pool.

use super::service::Service;
use super::statement::{self, Job, Writes};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The most bytes of an answer that has no rows of a table.
const SMALL_ANSWER: usize = 1024;
/// The most idle workers that are kept.
const KEEP: usize = 64;

/// Passes a job to a worker.
#[derive(Default)]
struct Desk {
    job: Cell<Option<Job>>,
    busy: Cell<bool>,
}

struct Worker {
    desk: Rc<Desk>,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

impl Worker {
    fn new<S: Service>(service: Rc<S>) -> Worker {
        let desk = Rc::new(Desk::default());
        let own = desk.clone();
        let future = Box::pin(async move {
            loop {
                let job = poll_fn(|_| match own.job.take() {
                    Some(job) => Poll::Ready(job),
                    None => Poll::Pending,
                })
                .await;
                pin!(statement::run(&*service, job)).await;
                own.busy.set(false);
            }
        });
        Worker { desk, future }
    }

    /// Polls the worker. True if the job is done.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let still = self.future.as_mut().poll(cx);
        debug_assert!(still.is_pending(), "a worker never ends");
        !self.desk.busy.get()
    }
}

/// The workers of a shard.
pub(super) struct Workers<S> {
    service: Rc<S>,
    idle: RefCell<Vec<Worker>>,
}

impl<S: Service> Workers<S> {
    pub fn new(service: Rc<S>) -> Workers<S> {
        Workers { service, idle: RefCell::default() }
    }

    /// The expected bytes of the answer to a statement, on a connection whose answers have `usual`
    /// bytes.
    pub fn answer_size(&self, writes: Writes, usual: usize) -> usize {
        let is_write = match writes {
            _ if usual <= SMALL_ANSWER => return usual,
            Writes::Yes => true,
            Writes::No => false,
            Writes::IfPrepared(id) => self.service.is_write(&id),
        };
        if is_write { SMALL_ANSWER } else { usual }
    }

    /// Starts `job`. If it has to wait, returns a future with the rest.
    #[inline]
    pub fn start(self: &Rc<Self>, job: Job) -> Option<impl Future<Output = ()> + 'static> {
        let idle = self.idle.borrow_mut().pop();
        let mut worker = idle.unwrap_or_else(|| Worker::new(self.service.clone()));
        debug_assert!(!worker.desk.busy.get(), "a worker has one job at a time");
        worker.desk.busy.set(true);
        worker.desk.job.set(Some(job));
        // This first poll needs no waker: if the job is not done, the task polls again.
        if worker.poll(&mut Context::from_waker(Waker::noop())) {
            self.keep(worker);
            return None;
        }
        let workers = self.clone();
        Some(async move {
            poll_fn(|cx| if worker.poll(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
            workers.keep(worker);
        })
    }

    fn keep(&self, worker: Worker) {
        debug_assert!(!worker.desk.busy.get(), "a worker that is kept has no job");
        let mut idle = self.idle.borrow_mut();
        if idle.len() < KEEP {
            idle.push(worker);
        }
    }
}
