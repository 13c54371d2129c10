-- A queued prompt that its worker cannot take now goes back to waiting, unclaimed.
-- ARGV: prompt_id, delay ms
if redis.call('ZSCORE', QUEUED, ARGV[1]) then
    wait_until(ARGV[1], NOW + tonumber(ARGV[2]))
end
return 1
