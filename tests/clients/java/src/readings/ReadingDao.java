package readings;

import com.datastax.oss.driver.api.core.MappedAsyncPagingIterable;
import com.datastax.oss.driver.api.core.PagingIterable;
import com.datastax.oss.driver.api.core.cql.BoundStatement;
import com.datastax.oss.driver.api.mapper.annotations.Dao;
import com.datastax.oss.driver.api.mapper.annotations.DefaultNullSavingStrategy;
import com.datastax.oss.driver.api.mapper.annotations.Delete;
import com.datastax.oss.driver.api.mapper.annotations.Insert;
import com.datastax.oss.driver.api.mapper.annotations.Query;
import com.datastax.oss.driver.api.mapper.annotations.Select;
import com.datastax.oss.driver.api.mapper.annotations.StatementAttributes;
import com.datastax.oss.driver.api.mapper.annotations.Update;
import com.datastax.oss.driver.api.mapper.entity.saving.NullSavingStrategy;
import java.time.Instant;
import java.util.concurrent.CompletionStage;

/** Statements that the driver's mapper writes: what they are is its choice. */
@Dao
@DefaultNullSavingStrategy(NullSavingStrategy.SET_TO_NULL)
public interface ReadingDao {
  @Insert
  void save(Reading reading);

  @Insert(nullSavingStrategy = NullSavingStrategy.DO_NOT_SET)
  void saveWhatIsSet(Reading reading);

  @Insert(ttl = ":seconds", timestamp = ":stamp")
  void saveFor(Reading reading, int seconds, long stamp);

  @Insert
  BoundStatement toSave(Reading reading);

  @Select
  Reading find(int sensor, Instant takenAt);

  @Select(customWhereClause = "sensor = :sensor AND taken_at >= :since", orderBy = "taken_at DESC", limit = ":most")
  @StatementAttributes(pageSize = 3)
  PagingIterable<Reading> since(int sensor, Instant since, int most);

  @Select
  CompletionStage<MappedAsyncPagingIterable<Reading>> ofSensor(int sensor);

  @Update(nullSavingStrategy = NullSavingStrategy.DO_NOT_SET)
  void update(Reading reading);

  @Update(customWhereClause = "sensor = :sensor AND taken_at IN (:first, :second)", nullSavingStrategy = NullSavingStrategy.DO_NOT_SET)
  void updateTwo(Reading values, int sensor, Instant first, Instant second);

  @Delete
  void remove(Reading reading);

  @Delete(entityClass = Reading.class)
  void removeSensor(int sensor);

  @Query("SELECT count(*) FROM ${qualifiedTableId} WHERE sensor = :sensor")
  long count(int sensor);

  @Query("SELECT writetime(value) FROM ${qualifiedTableId} WHERE sensor = :sensor AND taken_at = :at")
  long writtenAt(int sensor, Instant at);
}
