-- A queued prompt that its worker cannot take now goes back to waiting, unclaimed.
-- ARGV: prompt_id, delay ms
if redis.call('HEXISTS', PROMPTS, ARGV[1]) == 1 and not redis.call('ZSCORE', CLAIMS, ARGV[1]) then
    wait_until(ARGV[1], NOW + tonumber(ARGV[2]))
end
return 1
