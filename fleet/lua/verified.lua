-- An answer was tokenised as it was written.
-- ARGV: endpoint, why no sample can be made of it ('' when one can)
add_at(ARGV[1], 'verified', 1)
if ARGV[2] ~= '' then
    add_at(ARGV[1], 'unusable', 1)
    redis.call('HSET', ENDPOINTS, ARGV[1] .. '|unusable_last', ARGV[2])
end
return 0
