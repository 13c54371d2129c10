-- Give a claimed prompt back, to be sent again later.
-- ARGV: prompt_id, fence, delay ms, attempts to count, then of what failed: nano-USD spent, 1 if it
--       may be billed though no answer came, verdict, Retry-After ms, endpoint that it names
--       ('' for none), kind ('' when nothing failed), message, event ('' for none), body
-- → 'released' | 'repeated'
local id, fence = ARGV[1], ARGV[2]
local mine = settle(id, fence, tonumber(ARGV[5]), tonumber(ARGV[6]), true)
if mine == nil then return 'repeated' end
failed(mine, 5)
if mine.fence and redis.call('HEXISTS', PROMPTS, id) == 1 then
    if tonumber(ARGV[4]) > 0 then redis.call('HINCRBY', ATTEMPTS, id, ARGV[4]) end
    wait_until(id, NOW + tonumber(ARGV[3]))
end
return 'released'
