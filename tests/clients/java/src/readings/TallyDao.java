package readings;

import com.datastax.oss.driver.api.mapper.annotations.Dao;
import com.datastax.oss.driver.api.mapper.annotations.Increment;
import com.datastax.oss.driver.api.mapper.annotations.Select;

/** Counters through the mapper. */
@Dao
public interface TallyDao {
  @Increment(entityClass = Tally.class)
  void add(int sensor, long seen);

  @Select
  Tally find(int sensor);
}
