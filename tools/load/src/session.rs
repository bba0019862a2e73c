//! The connection to the database, and the tables.

use crate::Error;
use crate::options::Settings;
use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::retry::FallthroughRetryPolicy;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// Connects. The driver repeats no request by itself, so that every failure is counted.
pub async fn connect(settings: &Settings) -> Result<Session, Error> {
    let options = &settings.options;
    let profile = ExecutionProfile::builder()
        .consistency(options.consistency.consistency())
        .request_timeout(Some(Duration::from_millis(options.timeout_ms)))
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .build();
    let pool = NonZeroUsize::new(options.connections).map_or(PoolSize::PerShard(NonZeroUsize::MIN), PoolSize::PerHost);
    let session = SessionBuilder::new()
        .known_nodes(&options.hosts)
        .pool_size(pool)
        .default_execution_profile_handle(profile.into_handle())
        .build()
        .await?;
    Ok(session)
}

/// Creates the keyspace and a table, if they are not there.
pub async fn create_table(session: &Session, settings: &Settings, table: &str, columns: &str) -> Result<(), Error> {
    let options = &settings.options;
    let replication = format!("{{'class': 'NetworkTopologyStrategy', 'replication_factor': {}}}", options.rf);
    let keyspace = &options.keyspace;
    let create = format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}");
    session.query_unpaged(create, ()).await?;
    if options.drop {
        session.query_unpaged(format!("DROP TABLE IF EXISTS {table}"), ()).await?;
    }
    let create = format!("CREATE TABLE IF NOT EXISTS {table} {columns} {}", options.table_options);
    session.query_unpaged(create, ()).await?;
    session.await_schema_agreement().await?;
    Ok(())
}

/// What the server calls its release.
pub async fn server_version(session: &Session) -> Result<String, Error> {
    let result = session.query_unpaged("SELECT release_version FROM system.local", ()).await?;
    Ok(result.into_rows_result()?.first_row::<(String,)>()?.0)
}
