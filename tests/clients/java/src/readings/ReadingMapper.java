package readings;

import com.datastax.oss.driver.api.core.CqlIdentifier;
import com.datastax.oss.driver.api.mapper.annotations.DaoFactory;
import com.datastax.oss.driver.api.mapper.annotations.DaoKeyspace;
import com.datastax.oss.driver.api.mapper.annotations.DaoTable;
import com.datastax.oss.driver.api.mapper.annotations.Mapper;

/** Where the generated classes come from. It compares the entities with the schema that the node reports. */
@Mapper
public interface ReadingMapper {
  @DaoFactory
  ReadingDao readings(@DaoKeyspace CqlIdentifier keyspace, @DaoTable CqlIdentifier table);

  @DaoFactory
  TallyDao tallies(@DaoKeyspace CqlIdentifier keyspace);
}
