//! The entry of the query processor. Each shard has one, which answers the statements of the
//! shard's connections.
//!
//! Statements are parsed and planned once, and cached. Prepared statements are cached under their
//! ids; other statements have a smaller cache. A plan whose table has changed is made again before
//! it is executed.
//!
//! The answer is the error UNPREPARED if values bound for the old plan could mean something else
//! now, or if the client must learn about the change. Drivers then prepare the statement again.
//! PREPARE reaches every shard before it is answered, so any connection can execute the statement.
//!
//! Reading order: this file (requests), `plans` (finding their plans), `run` (executing a plan),
//! `traces`.

mod plans;
mod run;
mod traces;

use crate::api::{Answer, Batch, BatchStatement, BoundValues, ClientState, QueryParams};
use crate::authorize::{Permission, Resource, authorize};
use crate::batch::{self, BatchAttributes, Part};
use crate::error::Error;
use crate::fragments::{FragmentShards, LocalSourcesService};
use crate::plan::{Plan, PlanContext, Planned};
use crate::prepared::{Cache, CacheNumbers, StatementId};
use crate::request::{Config, Request};
use crate::slow_log::{SlowLog, SlowLogSettings};
use crate::statistics::{StatementNumbers, Statistics};
use crate::system::{self, SystemShards, SystemTables};
use crate::term::Env;
use cluster::Metadata;
use coordinator::Coordinator;
use plans::Use;
use replica::Trace;
use rt::shard::PerShard;
use rt::sync::Semaphore;
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use traces::Finished;

/// The memory limit for plans of unprepared statements, in bytes.
const QUERY_CACHE_SIZE: usize = 4 << 20;

/// The statements of a batch that are planned between two yields.
const STATEMENTS_PER_LOOK: usize = 16;

/// What the processors use on every shard.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessorShards {
    /// The processors.
    pub processor: PerShard<Processor>,
    /// Their coordinators.
    pub coordinator: PerShard<Coordinator>,
    /// What system tables show.
    pub system: SystemShards,
    /// What MUTATION_FRAGMENTS shows.
    pub fragments: PerShard<LocalSourcesService>,
}

/// Answers statements on one shard.
pub struct Processor {
    coordinator: Rc<Coordinator>,
    shards: ProcessorShards,
    context: PlanContext,
    config: RefCell<Rc<Config>>,
    prepared: RefCell<Cache>,
    queries: RefCell<Cache>,
    statistics: Statistics,
    slow_log: SlowLog,
    /// See [`Request::turn`].
    expansion: Semaphore,
}
impl Processor {
    /// The processor of this shard, with default limits.
    pub fn new(coordinator: Rc<Coordinator>, shards: ProcessorShards) -> Self {
        Processor::with_config(coordinator, Config::default(), shards)
    }

    /// The processor of this shard.
    pub fn with_config(coordinator: Rc<Coordinator>, mut config: Config, shards: ProcessorShards) -> Self {
        let statistics = Statistics::default();
        config.guardrails.violations = statistics.violations.clone();
        let prepared = RefCell::new(Cache::new(config.prepared_statements_cache_size));
        let queries = RefCell::new(Cache::new(QUERY_CACHE_SIZE));
        let config = RefCell::new(Rc::new(config));
        let (slow_log, expansion) = (SlowLog::default(), Semaphore::new(1));
        let cluster = coordinator.metadata_service().shards();
        let context = PlanContext {
            system: SystemTables::new(cluster, shards.system),
            fragments: FragmentShards { metadata: cluster.metadata, sources: shards.fragments },
        };
        Processor { coordinator, shards, context, config, prepared, queries, statistics, slow_log, expansion }
    }

    /// The current limits.
    pub fn config(&self) -> Rc<Config> {
        self.config.borrow().clone()
    }

    /// Sets the limits for all later requests. The size of the prepared statement cache does not
    /// change.
    pub fn set_config(&self, mut config: Config) {
        config.guardrails.violations = self.statistics.violations.clone();
        *self.config.borrow_mut() = Rc::new(config);
    }

    /// The settings of this shard's slow query log.
    pub fn slow_log(&self) -> SlowLogSettings {
        self.slow_log.settings()
    }

    /// Sets the slow query log for all later requests.
    pub fn set_slow_log(&self, settings: SlowLogSettings) {
        self.slow_log.set(settings);
    }

    /// The metrics of this shard's prepared statement cache.
    pub fn prepared_statements(&self) -> CacheNumbers {
        self.prepared.borrow().numbers()
    }

    /// The metrics of statements executed on this shard.
    pub fn statistics(&self) -> StatementNumbers {
        self.statistics.numbers()
    }

    /// Executes a statement given as text (QUERY).
    #[inline]
    pub async fn query(&self, client: &Rc<ClientState>, text: &str, params: &QueryParams) -> Result<Answer, Error> {
        let metadata = self.coordinator.metadata();
        let trace = self.trace_of(params);
        let steps = trace.as_ref().and_then(|trace| self.steps_of(trace, params));
        if let Some(steps) = &steps {
            steps.event("Parsing a statement");
        }
        let planned = self.plan_of_text(&metadata, client, text, params).await;
        let answer = match &planned {
            Ok(planned) => pin!(self.run(planned, client, params, metadata, steps)).await,
            Err(error) => Err(error.clone()),
        };
        if let Some(trace) = trace {
            let planned = planned.as_ref().map_or(&[][..], std::slice::from_ref);
            let (command, request) = ("QUERY", "Execute CQL3 query");
            self.finished(trace, Finished { client, params, command, request, text, planned });
        }
        answer
    }
    /// Executes a prepared statement (EXECUTE).
    #[inline]
    pub async fn execute(
        &self,
        client: &Rc<ClientState>,
        id: &StatementId,
        params: &QueryParams,
    ) -> Result<Answer, Error> {
        let metadata = self.coordinator.metadata();
        let (kept, planned) = self.prepared(client, id, Use::Alone(params.skip_metadata), &metadata)?;
        let trace = self.trace_of(params);
        let steps = trace.as_ref().and_then(|trace| self.steps_of(trace, params));
        // Pinned, so that this large future is not moved.
        let answer = pin!(self.run(&planned, client, params, metadata, steps)).await;
        let Some(trace) = trace else { return answer };
        let (text, planned) = (&*kept.text, std::slice::from_ref(&planned));
        let (command, request) = ("EXECUTE", "Execute CQL3 prepared query");
        self.finished(trace, Finished { client, params, command, request, text, planned });
        answer
    }

    /// Executes a batch (BATCH).
    #[inline]
    pub async fn batch(&self, client: &Rc<ClientState>, batch: &Batch) -> Result<Answer, Error> {
        let metadata = self.coordinator.metadata();
        let mut planned: Vec<(Rc<Planned>, &BoundValues)> = Vec::with_capacity(batch.statements.len());
        for (i, statement) in batch.statements.iter().enumerate() {
            if i % STATEMENTS_PER_LOOK == STATEMENTS_PER_LOOK - 1 {
                rt::task::maybe_yield().await;
            }
            planned.push(match statement {
                BatchStatement::Query(text, values) => {
                    (self.plan_of_text(&metadata, client, text, &batch.params).await?, values)
                }
                BatchStatement::Prepared(id, values) => (self.prepared(client, id, Use::InBatch, &metadata)?.1, values),
            });
        }
        let config = self.config();
        let mut bound = Vec::with_capacity(planned.len());
        for (planned, values) in &planned {
            let mut values = planned.bind(values, config.referenced_bytes())?;
            if planned.has_large(&values) {
                let request = self.request(&config, metadata.clone(), client, &batch.params, None);
                values = Box::pin(planned.check_large(values, &request)).await?;
            }
            bound.push(values);
        }
        let role = client.role.borrow().clone();
        let mut parts = Vec::with_capacity(planned.len());
        for ((planned, _), values) in planned.iter().zip(&bound) {
            let modify = match &planned.plan {
                Plan::Modify(modify) => modify,
                Plan::Configure(modify) | Plan::Unwritable(modify) => {
                    return Err(system::not_writable(&modify.schema, batch.params.consistency));
                }
                _ => {
                    return Err(Error::invalid(
                        "Invalid statement in batch: only UPDATE, INSERT and DELETE statements are allowed.",
                    ));
                }
            };
            let table = Resource::Table { keyspace: &modify.schema.keyspace, table: &modify.schema.name };
            authorize(role.as_deref(), Permission::Modify, table)?;
            parts.push(Part { modify, env: Env { values, variables: &planned.variables.columns } });
        }
        let trace = self.trace_of(&batch.params);
        let steps = trace.as_ref().and_then(|trace| self.steps_of(trace, &batch.params));
        self.statistics.batch(batch.kind, &batch.params, parts.iter().map(|part| part.modify.verb));
        let request = self.request(&config, metadata, client, &batch.params, steps);
        let whole = BatchAttributes { kind: batch.kind, timestamp: None, timeout: None };
        let answer = batch::execute(&parts, &whole, &request).await;
        if let Some(trace) = trace {
            let text = self.text_of(batch);
            let planned: Vec<Rc<Planned>> = planned.iter().map(|(planned, _)| planned.clone()).collect();
            let (params, text, planned) = (&batch.params, &*text, &planned[..]);
            let (command, request) = ("BATCH", "Execute batch of CQL3 queries");
            self.finished(trace, Finished { client, params, command, request, text, planned });
        }
        answer
    }

    /// The texts of a batch's statements, joined with `; `.
    fn text_of(&self, batch: &Batch) -> String {
        let prepared = self.prepared.borrow();
        let text = |statement: &BatchStatement| match statement {
            BatchStatement::Query(text, _) => text.clone(),
            BatchStatement::Prepared(id, _) => prepared.get(id).map_or(String::new(), |kept| kept.text.to_string()),
        };
        batch.statements.iter().map(text).collect::<Vec<_>>().join("; ")
    }
    fn request<'a>(
        &'a self,
        config: &'a Config,
        metadata: Rc<Metadata>,
        client: &'a ClientState,
        params: &'a QueryParams,
        trace: Option<Rc<Trace>>,
    ) -> Request<'a> {
        let held = RefCell::new(Some(metadata));
        Request { coordinator: &self.coordinator, held, config, client, params, trace, expansion: &self.expansion }
    }
}
