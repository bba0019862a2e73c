//! Executes a plan, by its kind.

use super::Processor;
use crate::api::{ClientState, QueryParams, ResultKind, StatementResult};
use crate::attributes::Attributes;
use crate::authorize::{Permission, Resource, authorize};
use crate::batch::{self, BatchAttributes, Part};
use crate::error::Error;
use crate::plan::{BatchPlan, Plan, Planned};
use crate::request::Request;
use crate::schema::{is_schema_statement, written_keyspace};
use crate::syntax::Statement;
use crate::term::Env;
use crate::{describe, schema, system};
use cluster::Metadata;
use replica::Trace;
use std::pin::pin;
use std::rc::Rc;

impl Processor {
    #[inline]
    pub(super) async fn run(
        &self,
        planned: &Planned,
        client: &Rc<ClientState>,
        params: &QueryParams,
        metadata: Rc<Metadata>,
        trace: Option<Rc<Trace>>,
    ) -> Result<StatementResult, Error> {
        let config = self.config();
        let mut values = planned.bind(&params.values, config.referenced_bytes())?;
        let request = self.request(&config, metadata, client, params, trace);
        if planned.has_large(&values) {
            values = Box::pin(planned.check_large(values, &request)).await?;
        }
        let env = Env { values: &values, variables: &planned.variables.columns };
        match &planned.plan {
            Plan::Select(select) => {
                self.statistics.select(select, params);
                allowed(client, Permission::Select, &select.schema.keyspace, &select.schema.name)?;
                let partitions = select.partitions(env, &request)?;
                let rate_limit = select.apply_rate_limit(&partitions, &request)?;
                // Pinned, so that this large future is not moved.
                let answer = pin!(select.execute(partitions, rate_limit, env, &request)).await?;
                self.statistics.selected(&answer);
                Ok(answer)
            }
            Plan::Modify(modify) => {
                self.statistics.modification(modify, params);
                allowed(client, Permission::Modify, &modify.schema.keyspace, &modify.schema.name)?;
                let warning = modify.check_level(&request)?;
                let keys = modify.partitions(env)?;
                let rate_limit = modify.apply_rate_limit(&keys, &request)?;
                pin!(modify.execute(keys, rate_limit, warning, env, &request)).await
            }
            Plan::Configure(modify) => {
                self.statistics.modification(modify, params);
                allowed(client, Permission::Modify, &modify.schema.keyspace, &modify.schema.name)?;
                Box::pin(system::config::update(self.plans.context().system.shards(), modify, env, &request)).await?;
                Ok(StatementResult::new(ResultKind::Void))
            }
            Plan::Unwritable(modify) => {
                self.statistics.modification(modify, params);
                allowed(client, Permission::Modify, &modify.schema.keyspace, &modify.schema.name)?;
                request.check_write_level()?;
                Err(system::not_writable(&modify.schema, params.consistency))
            }
            Plan::Batch(batch) => {
                self.statistics.batch(batch.kind, params, batch.statements.iter().map(|modify| modify.verb));
                Box::pin(run_batch(batch, env, &request)).await
            }
            Plan::Use(keyspace) => self.use_keyspace(client, keyspace, &request.metadata()),
            Plan::Truncate(truncate) => {
                let (statement, attributes) = &**truncate;
                let keyspace = written_keyspace(&statement.table);
                allowed(client, Permission::Modify, keyspace, &statement.table.name)?;
                let deadline = request.deadline(attributes.timeout(env, config.truncate_timeout)?)?;
                request.release_metadata();
                Box::pin(schema::truncate(
                    self.coordinator.metadata_service(),
                    &self.plans.context().system,
                    statement,
                    deadline.remaining(),
                ))
                .await
            }
            Plan::Describe(describe) => {
                authorize(client.role.borrow().as_deref(), Permission::Describe, Resource::AllKeyspaces)?;
                let ((statement, keyspace), system) = (&**describe, &self.plans.context().system);
                describe::describe(self.coordinator.metadata_service(), system, keyspace.as_deref(), statement)
            }
            Plan::Schema(schema) => {
                let (statement, attributes) = &**schema;
                let permission = permission_of(statement);
                authorize(client.role.borrow().as_deref(), permission, Resource::AllKeyspaces)?;
                if !is_schema_statement(statement) {
                    return Err(Error::not_supported("This statement"));
                }
                let drop_time = attributes.timestamp(env, rt::time::wall_micros(), false)?;
                // ALTER KEYSPACE waits for tablets. Their moves wait until older metadata is
                // unused.
                request.release_metadata();
                let (service, clocks) = (self.coordinator.metadata_service(), self.shards.coordinator);
                Box::pin(schema::execute(service, clocks, statement, drop_time, &config.guardrails)).await
            }
        }
    }

    fn use_keyspace(
        &self,
        client: &ClientState,
        keyspace: &str,
        metadata: &Metadata,
    ) -> Result<StatementResult, Error> {
        if !crate::system::is_virtual(keyspace) && metadata.keyspace(keyspace).is_none() {
            return Err(Error::invalid(format!("Keyspace '{keyspace}' does not exist")));
        }
        *client.keyspace.borrow_mut() = Some(keyspace.to_owned());
        Ok(StatementResult::new(ResultKind::SetKeyspace(keyspace.to_owned())))
    }
}

#[inline]
fn allowed(client: &ClientState, permission: Permission, keyspace: &str, table: &str) -> Result<(), Error> {
    authorize(client.role.borrow().as_deref(), permission, Resource::Table { keyspace, table })
}

fn permission_of(statement: &Statement) -> Permission {
    match statement {
        Statement::CreateKeyspace(_) | Statement::CreateTable(_) | Statement::CreateType(_) => Permission::Create,
        Statement::DropKeyspace(_)
        | Statement::DropTable(_)
        | Statement::DropType(_)
        | Statement::DropUnsupported(_) => Permission::Drop,
        _ => Permission::Alter,
    }
}

async fn run_batch(plan: &BatchPlan, env: Env<'_>, request: &Request<'_>) -> Result<StatementResult, Error> {
    for modify in &plan.statements {
        allowed(request.client, Permission::Modify, &modify.schema.keyspace, &modify.schema.name)?;
    }
    let parts: Vec<Part<'_>> = plan.statements.iter().map(|modify| Part { modify, env }).collect();
    let attributes: &Attributes = &plan.attributes;
    let now = rt::time::wall_micros();
    let whole = BatchAttributes {
        kind: plan.kind,
        timestamp: attributes.timestamp(env, now, request.config.restrict_future_timestamp)?,
        timeout: attributes
            .timeout
            .as_ref()
            .map(|_| attributes.timeout(env, request.config.write_timeout))
            .transpose()?,
    };
    batch::execute(&parts, &whole, request).await
}
