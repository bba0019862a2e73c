//! Prepared statements over changes of their table, and a session over a restart of its node.

use crate::{Error, KEYSPACE, ask, ensure};
use scylla::client::session::Session;
use scylla::response::query_result::QueryRowsResult;
use scylla::value::Row;
use std::time::Duration;

/// How long a session may take to come back.
const RESTART_TAKES: Duration = Duration::from_secs(60);

fn names(rows: &QueryRowsResult) -> String {
    rows.column_specs().iter().map(|column| column.name()).collect::<Vec<_>>().join(" ")
}

/// A statement that was prepared before its table changed sees the table as it is.
pub async fn schema_change(session: &Session) -> Result<(), Error> {
    session.query_unpaged("CREATE TABLE changing (pk int PRIMARY KEY, v int)", ()).await?;
    session.query_unpaged("INSERT INTO changing (pk, v) VALUES (1, 10)", ()).await?;
    let all = session.prepare("SELECT * FROM changing WHERE pk = ?").await?;
    for (change, expected, cells) in [
        ("INSERT INTO changing (pk) VALUES (1)", "pk v", 2),
        ("ALTER TABLE changing ADD w text", "pk v w", 2),
        ("UPDATE changing SET w = 'new' WHERE pk = 1", "pk v w", 3),
        ("ALTER TABLE changing DROP v", "pk w", 2),
    ] {
        session.query_unpaged(change, ()).await?;
        let rows = session.execute_unpaged(&all, (1,)).await?.into_rows_result()?;
        ensure!(names(&rows) == expected, "{change}: columns {}", names(&rows));
        let row = rows.single_row::<Row>()?;
        ensure!(row.columns.iter().flatten().count() == cells, "{change}: {row:?}");
    }
    session.query_unpaged("DROP TABLE changing", ()).await?;
    session.query_unpaged("CREATE TABLE changing (pk int PRIMARY KEY, other text)", ()).await?;
    let rows = session.execute_unpaged(&all, (1,)).await?.into_rows_result()?;
    ensure!(rows.rows_num() == 0, "a row of the dropped table");
    Ok(())
}

/// What an application sees when its only node goes away for a moment. `None` where the node is not ours to restart.
pub async fn restart(session: &Session) -> Result<Option<()>, Error> {
    session.query_unpaged("CREATE TABLE kept (pk int PRIMARY KEY, v int)", ()).await?;
    let insert = session.prepare("INSERT INTO kept (pk, v) VALUES (?, ?)").await?;
    let select = session.prepare("SELECT v FROM kept WHERE pk = ?").await?;
    for pk in 0..50 {
        session.execute_unpaged(&insert, (pk, pk * 7)).await?;
    }
    if ask("restart?")? != "done" {
        return Ok(None);
    }
    let came_back = tokio::time::timeout(RESTART_TAKES, async {
        while session.execute_unpaged(&select, (0,)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    came_back.await.map_err(|_| "the session did not come back")?;
    for pk in 0..50 {
        let row = session.execute_unpaged(&select, (pk,)).await?.into_rows_result()?;
        ensure!(row.single_row::<(i32,)>()?.0 == pk * 7, "row {pk}");
    }
    session.execute_unpaged(&insert, (100, 1)).await?;
    session.refresh_metadata().await?;
    session.query_unpaged(format!("ALTER TABLE {KEYSPACE}.kept ADD more int"), ()).await?;
    let count = session.query_unpaged("SELECT count(*) FROM kept", ()).await?.into_rows_result()?;
    ensure!(count.single_row::<(i64,)>()?.0 == 51, "count");
    Ok(Some(()))
}
